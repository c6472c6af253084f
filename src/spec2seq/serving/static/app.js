// The page: what its buttons do.

import { Contest } from "./contest.js";
import { EXAMPLES } from "./examples.js";
import { count, milliseconds, number } from "./figures.js";
import { Findings } from "./findings.js";
import { Languages } from "./languages.js";
import { play, slowFactor } from "./player.js";
import { runRace } from "./race.js";
import { Run } from "./run.js";
import { fetchObject, ServiceError, trace } from "./service.js";
import { Settings } from "./settings.js";
import { Written } from "./written.js";

const find = (id) => document.getElementById(id);
const output = new Written(find("output"));
const findings = new Findings(find("findings"), output);
const contest = new Contest(find("contest"));
const settings = new Settings(find("form"));
const languages = new Languages(
  find("source-language"), find("target-language"), find("source-label"), find("output-label"),
);

// Buttons that begin something, and wait while something is under way.
const STARTERS = "#translate, #race, #replay, #again-slow, #again-real, .example";

let maxChars = Infinity;
let running = null; // the AbortController of what is under way
let lastRun = null;
let lastExact = null; // for a relaxed run, what exact decoding wrote
let lastRace = null;

async function translate(signal) {
  const fields = { text: givenText(), ...languages.fields };
  const isRelaxed = settings.isRelaxed;
  const exactFields = { ...fields, ...settings.exactFields };
  const run = new Run();
  clearOutput();
  find("contest").hidden = true;
  say("Writing \u2026");
  await trace({ ...fields, ...settings.fields }, signal, (name, data) => {
    run.take(name, data);
    if (name === "start") beginOutput(data);
    if (name === "round") addRound(run.rounds.at(-1));
  });
  [lastRun, lastExact] = [run, isRelaxed ? await exactRun(exactFields, signal) : null];
  conclude();
  say(`Done: ${count(run.numTokens, "token")} in ${milliseconds(run.end.ms)}.`);
}

async function exactRun(fields, signal) {
  say("Comparing with exact decoding \u2026");
  const run = new Run();
  await trace(fields, signal, (name, data) => run.take(name, data));
  return run;
}

async function replay(signal) {
  const factor = slowFactor(lastRun.end.ms);
  clearOutput();
  beginOutput(lastRun.start);
  say(`Replaying, ${number(factor)} times slower than it ran \u2026`);
  await play([{ rounds: lastRun.rounds, ms: lastRun.end.ms, onRound: addRound, onEnd: conclude }], factor, signal);
  say("");
}

async function race(signal) {
  const fields = { text: givenText(), ...languages.fields };
  const drafted = { ...fields, ...settings.fields };
  const isRelaxed = settings.isRelaxed;
  lastRace = await runRace({ ...fields, drafter: false }, drafted, signal, (turn, turns) =>
    say(`Run ${turn} of ${turns}: ${turn % 2 ? "plain" : "speculative"} \u2026`),
  );
  [lastRun, lastExact] = [lastRace.drafted, isRelaxed ? lastRace.plain : null];
  clearOutput();
  beginOutput(lastRun.start);
  lastRun.rounds.forEach(addRound);
  conclude();
  say("Replaying both side by side \u2026");
  const shown = contest.show(lastRace, true, signal);
  find("contest").scrollIntoView({ block: "start" });
  await shown;
  say("The race is over.");
}

function givenText() {
  const text = find("source").value;
  if (!text.trim()) throw new ServiceError("There is no text yet. Write one, or choose an example.");
  return text;
}

function clearOutput() {
  output.clear();
  findings.clear();
  find("placeholder").hidden = false;
  find("replay").hidden = true;
}

function beginOutput(start) {
  find("placeholder").hidden = true;
  output.begin(start);
  findings.begin(start);
}

function addRound(round) {
  output.add(round);
  findings.add(round);
}

function conclude() {
  find("replay").hidden = false;
  findings.conclude(lastRun);
  if (lastExact) findings.compare(lastRun, lastExact);
}

// One thing at a time; what goes wrong is told, whatever it was.
async function perform(action) {
  if (running) return;
  running = new AbortController();
  const starter = document.activeElement;
  setBusy(true);
  find("cancel").focus({ preventScroll: true });
  find("problem").hidden = true;
  try {
    await action(running.signal);
  } catch (error) {
    tellFailure(error);
  }
  running = null;
  const isWaitingThere = document.activeElement === find("cancel");
  setBusy(false);
  if (isWaitingThere) starter.focus({ preventScroll: true });
}

function setBusy(isBusy) {
  find("cancel").hidden = !isBusy;
  for (const button of document.querySelectorAll(STARTERS)) button.disabled = isBusy;
  find("output").setAttribute("aria-busy", String(isBusy));
}

function tellFailure(error) {
  if (error.name === "AbortError") {
    say("Cancelled; the server has stopped too.");
    return;
  }
  say("");
  const isKnown = error instanceof ServiceError;
  const words = document.createElement("strong");
  words.textContent = isKnown ? error.message : "Something went wrong in this page.";
  find("problem").replaceChildren(words);
  const detail = isKnown ? error.detail : String(error);
  if (detail) find("problem").append(" The details: ", detail);
  find("problem").hidden = false;
}

function say(words) {
  find("status").textContent = words;
}

function tellLength() {
  const length = [...find("source").value].length; // characters as the service counts them
  const limit = Number.isFinite(maxChars) ? ` of at most ${number(maxChars)}` : "";
  find("count").textContent = `${number(length)}${limit} characters`;
  find("count").classList.toggle("over", length > maxChars);
}

function offerExamples() {
  for (const [name, text] of EXAMPLES) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "example";
    button.textContent = name;
    button.title = text;
    button.addEventListener("click", () => {
      find("source").value = text;
      tellLength();
      perform(translate);
    });
    item.append(button);
    find("examples").append(item);
  }
  find("source").value = EXAMPLES[0][1];
}

async function introduce() {
  const [models, listing] = await Promise.all([fetchObject("v1/models"), fetchObject("languages")]);
  const [model] = models.data;
  maxChars = model.max_input_chars;
  settings.limit(model);
  languages.offer(listing);
  find("served").textContent = model.drafter ? `${model.id}, drafts by ${model.drafter}` : `${model.id}, no drafter`;
  find("translate").textContent = languages.isTranslating ? "Translate" : "Generate";
  tellLanguages();
  tellLength();
}

// For screen readers, which pronounce, and browsers, which break lines.
function tellLanguages() {
  find("source").lang = languages.source;
  for (const element of document.querySelectorAll(".written")) element.lang = languages.target;
}

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  perform(translate);
});
find("form").addEventListener("change", tellLanguages);
find("source").addEventListener("input", tellLength);
find("race").addEventListener("click", () => perform(race));
find("replay").addEventListener("click", () => perform(replay));
find("again-slow").addEventListener("click", () => perform((signal) => contest.show(lastRace, true, signal)));
find("again-real").addEventListener("click", () => perform((signal) => contest.show(lastRace, false, signal)));
find("cancel").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) perform(translate);
});

offerExamples();
tellLength();
introduce().catch(tellFailure);
