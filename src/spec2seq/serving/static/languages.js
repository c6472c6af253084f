// From which language to which, where the served model knows languages.

/** Two lists to choose from, hidden where there is one language only. */
export class Languages {
  constructor(sourceSelect, targetSelect, sourceLabel, targetLabel) {
    Object.assign(this, { sourceSelect, targetSelect, sourceLabel, targetLabel });
    this.names = new Map();
    this.targets = new Map();
    sourceSelect.addEventListener("change", () => this.#offerTargets());
    targetSelect.addEventListener("change", () => this.#tell());
  }

  /** Offer what the service lists. */
  offer(listing) {
    this.names = new Map(listing.map((language) => [language.code, language.name]));
    this.targets = new Map(listing.map((language) => [language.code, language.targets]));
    if (!listing.length) return;
    this.#fill(this.sourceSelect, [...this.targets.keys()]);
    this.#offerTargets();
  }

  get isTranslating() {
    return this.targets.size > 0;
  }

  get source() {
    return this.sourceSelect.value;
  }

  get target() {
    return this.targetSelect.value;
  }

  /** Fields of a request. */
  get fields() {
    return this.isTranslating ? { source: this.source, target: this.target } : {};
  }

  #offerTargets() {
    this.#fill(this.targetSelect, this.targets.get(this.source));
    this.#tell();
  }

  #fill(select, codes) {
    select.replaceChildren(...codes.map((code) => new Option(this.#name(code), code)));
    select.hidden = codes.length < 2;
  }

  #tell() {
    this.sourceLabel.textContent = this.sourceSelect.hidden ? this.#name(this.source) : "From";
    this.targetLabel.textContent = this.targetSelect.hidden ? this.#name(this.target) : "Into";
  }

  // A target that is no source has no name in the listing; browsers know most.
  #name(code) {
    if (this.names.has(code)) return this.names.get(code);
    try {
      return new Intl.DisplayNames("en", { type: "language" }).of(code.replaceAll("_", "-"));
    } catch {
      return code;
    }
  }
}
