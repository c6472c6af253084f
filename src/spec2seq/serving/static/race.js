// Plain against speculative decoding of one text, run by turns.

import { Run } from "./run.js";
import { trace } from "./service.js";

export const REPEATS = 3;
// Medians closer than this share of the slower one may have changed places by chance.
const MARGIN = 0.05;

/** Run both requests `REPEATS` times by turns. Resolves to { plain, drafted }: of each the run with the median time. */
export async function runRace(plainFields, draftedFields, signal, onTurn) {
  const runs = { plain: [], drafted: [] };
  for (let turn = 0; turn < 2 * REPEATS; turn += 1) {
    onTurn(turn + 1, 2 * REPEATS);
    const isPlain = turn % 2 === 0;
    const run = new Run();
    await trace(isPlain ? plainFields : draftedFields, signal, (name, data) => run.take(name, data));
    runs[isPlain ? "plain" : "drafted"].push(run);
  }
  return { plain: median(runs.plain), drafted: median(runs.drafted) };
}

function median(runs) {
  return [...runs].sort((a, b) => a.end.ms - b.end.ms)[Math.floor(runs.length / 2)];
}

/** "plain", "drafted", or null where it is too close to say. */
export function winnerOf({ plain, drafted }) {
  const slower = Math.max(plain.end.ms, drafted.end.ms);
  if (Math.abs(plain.end.ms - drafted.end.ms) < MARGIN * slower) return null;
  return plain.end.ms < drafted.end.ms ? "plain" : "drafted";
}
