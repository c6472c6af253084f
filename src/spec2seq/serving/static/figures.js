// Numbers with their units.

const formats = new Map();

/** A number with this many decimals, in the way English texts write it. */
export function number(value, decimals = 0) {
  if (!formats.has(decimals)) {
    const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    formats.set(decimals, new Intl.NumberFormat("en", digits));
  }
  return formats.get(decimals).format(value);
}

/** "1 round", "2 rounds" */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function milliseconds(ms) {
  return `${number(ms, ms < 100 ? 1 : 0)} ms`;
}

/** Fill a description list with [name, value, unit] triples. */
export function fillFigures(list, triples) {
  const items = triples.map(([name, value, unit]) => {
    const item = document.createElement("div");
    const term = document.createElement("dt");
    term.textContent = name;
    const figure = document.createElement("dd");
    figure.textContent = value;
    if (unit) {
      const small = document.createElement("span");
      small.className = "unit";
      small.textContent = ` ${unit}`;
      figure.append(small);
    }
    item.append(term, figure);
    return item;
  });
  list.replaceChildren(...items);
}

/** What a finished run is measured by. */
export function figuresOf(end) {
  return [
    ["Speed", number(end.tokens_per_second), "tokens/s"],
    ["Time", number(end.ms, end.ms < 100 ? 1 : 0), "ms"],
    ["Rounds", number(end.stats.num_rounds)],
    ["Per round", number(end.stats.tokens_per_round, 2), "tokens"],
  ];
}
