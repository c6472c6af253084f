// Which tokens of two texts do not belong to a longest common part of both.

/** Places in `ours` and in `theirs` that differ: two sets of indexes. */
export function difference(ours, theirs) {
  let first = 0;
  while (first < ours.length && first < theirs.length && ours[first] === theirs[first]) first += 1;
  let ourEnd = ours.length;
  let theirEnd = theirs.length;
  while (ourEnd > first && theirEnd > first && ours[ourEnd - 1] === theirs[theirEnd - 1]) {
    ourEnd -= 1;
    theirEnd -= 1;
  }
  const found = walk(ours.slice(first, ourEnd), theirs.slice(first, theirEnd));
  return { ours: moved(found.ours, first), theirs: moved(found.theirs, first) };
}

// lengths[i][j]: of the longest common subsequence of what follows i in ours and j in theirs
function walk(ours, theirs) {
  const lengths = Array.from({ length: ours.length + 1 }, () => new Uint16Array(theirs.length + 1));
  for (let i = ours.length - 1; i >= 0; i -= 1) {
    for (let j = theirs.length - 1; j >= 0; j -= 1) {
      const longer = Math.max(lengths[i + 1][j], lengths[i][j + 1]);
      lengths[i][j] = ours[i] === theirs[j] ? lengths[i + 1][j + 1] + 1 : longer;
    }
  }
  const found = { ours: [], theirs: [] };
  let i = 0;
  let j = 0;
  while (i < ours.length || j < theirs.length) {
    if (i < ours.length && j < theirs.length && ours[i] === theirs[j]) {
      i += 1;
      j += 1;
    } else if (j === theirs.length || (i < ours.length && lengths[i + 1][j] >= lengths[i][j + 1])) {
      found.ours.push(i++);
    } else {
      found.theirs.push(j++);
    }
  }
  return found;
}

function moved(places, offset) {
  return new Set(places.map((place) => place + offset));
}
