// Recorded rounds once more, at the times at which they came or slower.

const SLOW_SECONDS = 4;

/** How many times slower than it ran a recording of `ms` is shown in slow motion. */
export function slowFactor(ms) {
  return Math.max(1, Math.round((1000 * SLOW_SECONDS) / ms));
}

/** Whether the user wants no motion. */
export function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/**
 * Play recordings side by side until all have ended. Each is { rounds, ms, onRound, onEnd }. Aborting the signal, or a
 * user who wants no motion, shows the end at once.
 */
export async function play(recordings, factor, signal) {
  const lanes = recordings.map((recording) => ({ ...recording, next: 0, isOver: false }));
  const last = Math.max(...recordings.map((recording) => recording.ms));
  const begin = performance.now();
  let now = 0;
  do {
    const time = await nextFrame();
    now = signal.aborted || isStill() ? last : Math.min(last, Math.max(0, time - begin) / factor);
    for (const lane of lanes) advance(lane, now);
  } while (now < last);
}

function advance(lane, now) {
  while (lane.next < lane.rounds.length && lane.rounds[lane.next].ms <= now) lane.onRound(lane.rounds[lane.next++]);
  if (lane.isOver || now < lane.ms) return;
  lane.isOver = true;
  lane.onEnd();
}

// A page in the background gets no frames.
function nextFrame() {
  if (document.hidden) return new Promise((resolve) => setTimeout(() => resolve(performance.now()), 50));
  return new Promise((resolve) => requestAnimationFrame(resolve));
}
