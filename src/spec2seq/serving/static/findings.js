// What a finished translation came to: rounds, figures, and how it compares with exact decoding.

import { difference } from "./difference.js";
import { count, figuresOf, fillFigures, milliseconds, number } from "./figures.js";
import { describeOrigins } from "./run.js";
import { Strip } from "./strip.js";
import { Written } from "./written.js";

/** The section below the output. `output` is the text that its rounds point into. */
export class Findings {
  constructor(root, output) {
    this.root = root;
    this.output = output;
    this.find = (selector) => root.querySelector(selector);
    this.exact = new Written(this.find("#exact-output"));
    this.strip = new Strip(this.find("#strip"), (round) => this.point(round));
    output.element.addEventListener("pointerover", (event) => this.#pointFrom(event.target));
    output.element.addEventListener("click", (event) => this.#pointFrom(event.target));
  }

  /** Forget the last text. */
  clear() {
    this.strip.clear();
    this.root.hidden = true;
    this.find("#exact").hidden = true;
    for (const id of ["#verdict", "#readout"]) this.find(id).textContent = "";
    this.find("#figures").replaceChildren();
  }

  begin(start) {
    this.root.hidden = false;
    this.strip.begin(start);
  }

  add(round) {
    this.strip.add(round);
  }

  /** Say what the run took. */
  conclude(run) {
    const { stats } = run.end;
    const kept = stats.num_judged ? `${number(stats.num_accepted)} of ${number(stats.num_judged)}` : "none drafted";
    fillFigures(this.find("#figures"), [...figuresOf(run.end), ["Drafts kept", kept]]);
    this.find("#verdict").textContent =
      `${count(stats.num_tokens, "token")} in ${count(stats.num_rounds, "round")} of the model` +
      (run.start.is_exact ? `; plain decoding takes ${number(stats.num_tokens)}.` : ".");
  }

  /** Compare a relaxed run with the exact one for the same text. */
  compare(relaxed, exact) {
    const { ours, theirs } = difference(relaxed.tokenIds, exact.tokenIds);
    const isSame = ours.size + theirs.size === 0;
    const words = isSame
      ? "Relaxed, and still the same as exact decoding."
      : `Not exact: ${number(ours.size)} of these tokens are not in the exact text. They have a dashed line above.`;
    this.find("#verdict").append(" ", strong(words));
    this.find("#exact").hidden = isSame;
    if (isSame) return;
    this.output.markDifferent(ours);
    this.exact.show(exact);
    this.exact.markDifferent(theirs);
  }

  /** Highlight a round, here and in the text. */
  point(round) {
    this.strip.point(round.key);
    this.output.point(round.key);
    const text = round.tokens.map((token) => token.text).join("").trim() || "the end of the text";
    this.find("#readout").textContent =
      `Round ${round.round}, after ${milliseconds(round.ms)}: \u201c${text}\u201d, ${describeOrigins(round.tokens)}.`;
  }

  #pointFrom(target) {
    const group = target.closest(".round");
    const round = group && this.strip.rounds.get(group.dataset.key);
    if (round) this.point(round);
  }
}

function strong(words) {
  const element = document.createElement("strong");
  element.textContent = words;
  return element;
}
