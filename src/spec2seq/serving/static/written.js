// A text as it is written: every token marked by its origin, the tokens of a round together.

import { ORIGIN_NAMES } from "./run.js";

const END = "\u220e"; // stands for a token without text, as the end of sequence is

/** Shows runs in an element. */
export class Written {
  constructor(element) {
    this.element = element;
    this.pieces = [];
  }

  clear() {
    this.element.replaceChildren();
    this.pieces = [];
  }

  /** Make places for the pieces of a text. */
  begin(start) {
    this.clear();
    this.element.append(start.separators[0]);
    start.pieces.forEach((_, i) => {
      const piece = document.createElement("span");
      this.pieces.push(piece);
      this.element.append(piece, start.separators[i + 1]);
    });
  }

  add(round) {
    const group = document.createElement("span");
    group.className = "round";
    group.dataset.key = round.key;
    for (const token of round.tokens) group.append(...tokenNodes(token, round.round));
    this.pieces[round.piece].append(group);
  }

  /** A whole run at once. */
  show(run) {
    this.begin(run.start);
    run.rounds.forEach((round) => this.add(round));
  }

  /** Mark the tokens at these places in the order of the text. */
  markDifferent(places) {
    this.element.querySelectorAll(".token").forEach((token, i) => {
      if (!places.has(i)) return;
      token.classList.add("different");
      const word = document.createElement("span");
      word.className = "unseen";
      word.textContent = " (differs) ";
      token.append(word);
    });
  }

  /** Point at one round, or at none. */
  point(key) {
    for (const group of this.element.querySelectorAll(".round")) {
      group.classList.toggle("pointed", group.dataset.key === key);
    }
  }
}

// A space in front stays outside, so that marks run under words only.
function tokenNodes(token, round) {
  const word = token.text.trimStart();
  const mark = document.createElement("span");
  mark.className = `token ${token.origin}`;
  mark.title = `Round ${round}: ${ORIGIN_NAMES[token.origin][0]}`;
  mark.textContent = word || END;
  if (!word) {
    mark.classList.add("end");
    mark.setAttribute("aria-hidden", "true");
  }
  return [token.text.slice(0, token.text.length - word.length), mark];
}
