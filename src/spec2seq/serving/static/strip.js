// The rounds of a run as a row of columns, one shape per token.

import { describeOrigins } from "./run.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Shows rounds; calls `onPoint(round)` for the one that is pointed at, with the mouse, a finger or the keyboard. */
export class Strip {
  constructor(element, onPoint) {
    this.element = element;
    this.onPoint = onPoint;
    this.rounds = new Map();
    element.addEventListener("pointerover", (event) => this.#pointAt(event.target));
    element.addEventListener("focusin", (event) => this.#pointAt(event.target));
    element.addEventListener("click", (event) => this.#pointAt(event.target));
    element.addEventListener("keydown", (event) => this.#move(event));
  }

  clear() {
    this.element.replaceChildren();
    this.rounds.clear();
  }

  /** Make a row for every piece. */
  begin(start) {
    this.clear();
    this.rows = start.pieces.map((_, i) => {
      const row = document.createElement("div");
      row.className = "strip-row";
      row.setAttribute("role", "group");
      row.setAttribute("aria-label", `Part ${i + 1} of ${start.pieces.length}`);
      this.element.append(row);
      return row;
    });
  }

  add(round) {
    this.rounds.set(round.key, round);
    const column = document.createElement("button");
    column.type = "button";
    column.className = "column";
    column.dataset.key = round.key;
    column.tabIndex = this.rounds.size === 1 ? 0 : -1;
    const text = round.tokens.map((token) => token.text).join("").trim() || "end";
    column.setAttribute("aria-label", `Round ${round.round}: ${text}; ${describeOrigins(round.tokens)}`);
    for (const token of round.tokens) {
      const shape = document.createElement("span");
      shape.className = `shape ${token.origin}`;
      column.append(shape);
    }
    this.rows[round.piece].append(column);
  }

  /** Highlight one round, or none. */
  point(key) {
    for (const column of this.element.querySelectorAll(".column")) {
      column.classList.toggle("pointed", column.dataset.key === key);
    }
  }

  #pointAt(target) {
    const column = target.closest(".column");
    if (column) this.onPoint(this.rounds.get(column.dataset.key));
  }

  #move(event) {
    const columns = [...this.element.querySelectorAll(".column")];
    const here = columns.indexOf(document.activeElement);
    const ends = { Home: 0, End: columns.length - 1 };
    const there = event.key in STEPS ? here + STEPS[event.key] : ends[event.key];
    if (here < 0 || !columns[there]) return;
    event.preventDefault();
    columns[here].tabIndex = -1;
    columns[there].tabIndex = 0;
    columns[there].focus();
  }
}
