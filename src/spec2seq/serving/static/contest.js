// A race as it is seen: two lanes, a common time axis, and who won.

import { difference } from "./difference.js";
import { count, figuresOf, fillFigures, milliseconds, number } from "./figures.js";
import { isStill, play, slowFactor } from "./player.js";
import { REPEATS, winnerOf } from "./race.js";
import { Written } from "./written.js";

/** The section of the page that shows races. */
export class Contest {
  constructor(root) {
    this.root = root;
    this.find = (selector) => root.querySelector(selector);
    this.lanes = {
      plain: new Lane(this.find("#lane-plain"), this.find("#track-plain")),
      drafted: new Lane(this.find("#lane-drafted"), this.find("#track-drafted")),
    };
  }

  /** Play a race, slowed down or as it ran, and say who won. */
  async show(race, isSlow, signal) {
    const last = Math.max(race.plain.end.ms, race.drafted.end.ms);
    const factor = isSlow ? slowFactor(last) : 1;
    this.#clear(race, last, factor);
    const recordings = Object.entries(this.lanes).map(([name, lane]) => lane.recording(race[name], last));
    await play(recordings, factor, signal);
    this.#judge(race);
  }

  #clear(race, last, factor) {
    this.root.hidden = false;
    this.find("#winner").textContent = "";
    this.find("#same").textContent = "";
    this.find("#axis-end").textContent = milliseconds(last);
    this.find("#contest-note").textContent = noteOf(factor);
    const { drafter } = race.drafted.start;
    this.find("#lane-drafted-note").textContent = drafter ? `${drafter} drafts, the model verifies.` : "Nothing is drafted.";
  }

  #judge(race) {
    const winner = winnerOf(race);
    if (winner) this.lanes[winner].crown();
    this.find("#winner").textContent = verdictOf(race, winner);
    const { ours, theirs } = difference(race.drafted.tokenIds, race.plain.tokenIds);
    this.lanes.drafted.written.markDifferent(ours);
    this.lanes.plain.written.markDifferent(theirs);
    this.find("#same").textContent = samenessOf(race, ours.size + theirs.size);
  }
}

/** One of the two. */
class Lane {
  constructor(element, track) {
    this.element = element;
    this.track = track;
    this.place = element.querySelector(".place");
    this.figures = element.querySelector(".figures");
    this.written = new Written(element.querySelector(".written"));
  }

  /** What `play` needs for this run, on an axis of `last` milliseconds. Clears the lane. */
  recording(run, last) {
    let [rounds, tokens, before] = [0, 0, 0];
    const tell = () => fillFigures(this.figures, [["Rounds", number(rounds)], ["Tokens", number(tokens)]]);
    this.#clear(run);
    tell();
    const onRound = (round) => {
      rounds += 1;
      tokens += round.tokens.length;
      this.written.add(round);
      this.#addTick(round, before / last, (round.ms - before) / last);
      before = round.ms;
      tell();
    };
    return { rounds: run.rounds, ms: run.end.ms, onRound, onEnd: () => fillFigures(this.figures, figuresOf(run.end)) };
  }

  crown() {
    this.element.classList.add("first");
    this.place.hidden = false;
    this.place.textContent = "\u2713 first";
  }

  #clear(run) {
    this.element.classList.remove("first");
    this.place.hidden = true;
    this.track.replaceChildren();
    this.written.begin(run.start);
  }

  #addTick(round, start, length) {
    const tick = document.createElement("span");
    const isKept = round.tokens.some((token) => token.origin === "accepted");
    tick.className = `tick ${isKept ? "accepted" : round.tokens.at(-1).origin}`;
    tick.style.left = `${100 * start}%`;
    tick.style.width = `${100 * length}%`;
    this.track.append(tick);
  }
}

function noteOf(factor) {
  const slowly = factor === 1 ? "at the speed at which it ran" : `${number(factor)} times slower than it ran`;
  const speed = isStill() ? "as it ended, because your settings ask for no motion" : slowly;
  return (
    `Both use the same engine. They ran one after the other, ${REPEATS} times by turns, so that neither slowed the ` +
    `other; of each, the run with the median time is shown here, ${speed}. A tick is a round; the first includes ` +
    "reading the text."
  );
}

function verdictOf({ plain, drafted }, winner) {
  const times = `${milliseconds(drafted.end.ms)} with drafts, ${milliseconds(plain.end.ms)} without`;
  const rounds = `${count(drafted.end.stats.num_rounds, "round")} against ${number(plain.end.stats.num_rounds)}`;
  if (!winner) return `Too close to call: ${times}; ${rounds}.`;
  const [first, second] = winner === "plain" ? [plain, drafted] : [drafted, plain];
  const name = winner === "plain" ? "Plain decoding" : "Speculative decoding";
  return `${name} was ${number(second.end.ms / first.end.ms, 2)}\u00d7 as fast: ${times}; ${rounds}.`;
}

function samenessOf({ drafted }, numDifferent) {
  if (!numDifferent) return "Both wrote the same text, token for token.";
  if (!drafted.start.is_exact) return "Not the same text: the tolerance let other tokens pass, marked by a dashed line above.";
  return "Not the same text, though exact: two tokens had almost the same score, and rounding chose.";
}
