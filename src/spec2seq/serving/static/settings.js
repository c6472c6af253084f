// The sliders, and what they mean to the service.

import { count, number } from "./figures.js";

const LONGEST_SLIDER = 16;

/** Draft length, tolerance and candidates. */
export class Settings {
  constructor(root) {
    const find = (id) => root.querySelector(`#${id}`);
    this.sliders = Object.fromEntries(["draft-length", "tolerance", "candidates"].map((id) => [id, find(id)]));
    this.values = Object.fromEntries(Object.keys(this.sliders).map((id) => [id, find(`${id}-value`)]));
    this.auto = find("draft-length-auto");
    this.sliders["draft-length"].addEventListener("input", () => this.#setAuto(false));
    this.auto.addEventListener("click", () => this.#setAuto(!this.#isAuto));
    for (const slider of Object.values(this.sliders)) slider.addEventListener("input", () => this.#tell());
    this.#tell();
  }

  /** Keep to what the served model takes; without a drafter there is nothing to set. */
  limit(model) {
    this.sliders["draft-length"].max = Math.min(LONGEST_SLIDER, model.max_draft_tokens);
    for (const control of [...Object.values(this.sliders), this.auto]) control.disabled = !model.drafter;
    this.#tell();
  }

  get isRelaxed() {
    return this.#number("tolerance") > 0;
  }

  /** Fields of a request. */
  get fields() {
    if (!this.isRelaxed) return this.exactFields;
    return { ...this.exactFields, top_beta: this.#number("candidates"), tau: this.#number("tolerance") };
  }

  /** Fields of the request with the same drafts and no tolerance, whatever the service was started with. */
  get exactFields() {
    return { num_draft_tokens: this.#isAuto ? "auto" : this.#number("draft-length"), top_beta: 1 };
  }

  get #isAuto() {
    return this.auto.getAttribute("aria-pressed") === "true";
  }

  #number(id) {
    return Number(this.sliders[id].value);
  }

  #setAuto(isAuto) {
    this.auto.setAttribute("aria-pressed", String(isAuto));
    this.#tell();
  }

  #tell() {
    const length = this.#number("draft-length");
    const fixed = length ? count(length, "token") : "0 tokens: plain";
    this.#say("draft-length", this.#isAuto ? "drafter\u2019s choice" : fixed);
    this.#say("tolerance", this.isRelaxed ? `${number(this.#number("tolerance"), 1)} nats: relaxed` : "0: exact");
    this.#say("candidates", this.isRelaxed ? `best ${this.#number("candidates")}` : "best 1: exact");
    this.sliders["draft-length"].classList.toggle("idle", this.#isAuto);
    this.sliders.candidates.classList.toggle("idle", !this.isRelaxed);
  }

  #say(id, words) {
    this.values[id].textContent = words;
    this.sliders[id].setAttribute("aria-valuetext", words);
  }
}
