// The record of one decoded text: what came in which round, and what it took.

export const ORIGIN_NAMES = {
  accepted: ["kept draft", "kept drafts"],
  correction: ["correction", "corrections"],
  bonus: ["bonus", "bonuses"],
  forced: ["given token", "given tokens"],
};

/** A run as the events of the service tell it. */
export class Run {
  constructor() {
    this.start = null;
    this.rounds = []; // { key, piece, round, ms, tokens: [{ id, text, origin }] } as they came
    this.end = null;
  }

  /** Take an event; rounds get a key of their own. */
  take(name, data) {
    if (name === "start") this.start = data;
    if (name === "round") this.rounds.push({ ...data, key: `${data.piece}:${data.round}` });
    if (name === "end") this.end = data;
  }

  get numTokens() {
    return this.rounds.reduce((sum, round) => sum + round.tokens.length, 0);
  }

  /** The rounds in the order of the text. */
  get roundsInOrder() {
    return [...this.rounds].sort((a, b) => a.piece - b.piece || a.round - b.round);
  }

  /** The token ids in the order of the text. */
  get tokenIds() {
    return this.roundsInOrder.flatMap((round) => round.tokens.map((token) => token.id));
  }
}

/** "2 kept drafts, 1 bonus" */
export function describeOrigins(tokens) {
  const parts = Object.entries(ORIGIN_NAMES).map(([origin, names]) => {
    const count = tokens.filter((token) => token.origin === origin).length;
    return count && `${count} ${names[count === 1 ? 0 : 1]}`;
  });
  return parts.filter(Boolean).join(", ");
}
