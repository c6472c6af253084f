// Talking to the service: what it is, and the events of one traced text.

/** What a user is told, in plain words; `detail` is the service's own sentence. */
export class ServiceError extends Error {
  constructor(message, detail = "") {
    super(message);
    this.detail = detail;
  }
}

const UNREACHABLE = "The server cannot be reached. Is it still running?";
const LOST = "The connection to the server was lost before the text was finished.";
const BLANK = "Nothing of this text shows: it has no letters, figures or signs.";

/** The object at a path of the service. */
export async function fetchObject(path) {
  const response = await request(path, {});
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/**
 * Decode one text and hand over its events (name, object) as they come; resolves after the last one.
 * `fields` are those of /v1/trace. Aborting the signal drops the work on the server too.
 */
export async function trace(fields, signal, onEvent) {
  const response = await request("v1/trace", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(fields),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  let isFinished = false;
  for await (const [name, data] of serverSentEvents(response.body, signal)) {
    if (name === "start" && !data.pieces.length) throw new ServiceError(BLANK);
    if (name === "error") throw new ServiceError("The server had to give up on this text.", data.error);
    if (name === "end") isFinished = true;
    onEvent(name, data);
  }
  if (!isFinished) throw new ServiceError(LOST);
}

async function request(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(UNREACHABLE);
  }
}

async function* serverSentEvents(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await readPart(reader, signal);
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) yield parseEvent(block);
  }
}

async function readPart(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    throw new ServiceError(LOST);
  }
}

function parseEvent(block) {
  const fields = Object.fromEntries(block.split("\n").map((line) => splitOnce(line, ": ")));
  return [fields.event, JSON.parse(fields.data)];
}

function splitOnce(line, separator) {
  const place = line.indexOf(separator);
  return [line.slice(0, place), line.slice(place + separator.length)];
}

async function refusal(response) {
  const detail = await errorText(response);
  if (response.status === 413 || detail.includes("max_input_chars")) {
    return new ServiceError("This text is too long for this server. Try a shorter one.", detail);
  }
  if (response.status === 429) {
    const seconds = response.headers.get("retry-after");
    const when = seconds ? `in ${seconds} s` : "in a moment";
    return new ServiceError(`The server is busy, and its queue is full. Try again ${when}.`, detail);
  }
  if (response.status === 503) return new ServiceError("The server does not take this text now. Try again later.", detail);
  if (response.status >= 500) return new ServiceError("Something went wrong inside the server.", detail);
  return new ServiceError("The server does not accept this.", detail);
}

async function errorText(response) {
  try {
    const { error } = await response.json();
    return typeof error === "string" ? error : "";
  } catch {
    return ""; // not from the service, but from something in front of it
  }
}
