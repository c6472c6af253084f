"""The page in a real Chromium, against a server with the bundled model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from spec2seq import Pipeline
from tests.serving_process import ServerProcess, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = Path("/usr/bin/chromium")
MODEL = Path(__file__).parents[2] / "models" / "debian-en-it"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
EXAMPLE = "This package contains the documentation (HTML, PDF, PostScript and man pages)."
HARD = "The game is played on a board with black and white stones; the player who surrounds more of the board wins."
MAX_CHARS = 2000
WAIT_MS = 60_000

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: apt install chromium"),
    pytest.mark.skipif(not MODEL.exists(), reason="the bundled model is not in this checkout"),
]
expect = playwright.expect


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(MODEL, "--threads", "1", "--max-input-chars", str(MAX_CHARS)) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """A page that was opened, and everything that it complained about or asked for elsewhere."""

    def __init__(self, context: Any, url: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._listen)
        self.page.on("request", lambda request: self._check(request.url, url))
        self.page.goto(url + "/")
        expect(self.page.locator("#served")).to_contain_text("debian-en-it", timeout=WAIT_MS)

    def _listen(self, message: Any) -> None:
        # a refused request is told like this too, and the tests ask for some
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _check(self, asked: str, url: str) -> None:
        if not asked.startswith(url + "/"):
            self.complaints.append(f"asked for {asked}")

    def translate(self, text: str) -> None:
        """Write a text, translate it, and wait for the end."""
        self.page.fill("#source", text)
        self.page.click("#translate")
        expect(self.page.locator("#status")).to_contain_text("Done", timeout=WAIT_MS)

    def text(self, selector: str = "#output") -> str:
        """What a reader reads there, without marks for tokens that have no text."""
        return str(self.page.evaluate(READ, selector))

    def set_slider(self, name: str, value: float) -> None:
        """Move a slider as a user does."""
        self.page.get_by_role("slider", name=name).fill(str(value))


READ = """selector => {
  const copy = document.querySelector(selector).cloneNode(true);
  copy.querySelectorAll(".end, .unseen").forEach(element => element.remove());
  return copy.textContent;
}"""


@pytest.fixture
def visit(browser: Any, server: ServerProcess) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1240, "height": 900})
    visit = Visit(context, server.url)
    yield visit
    context.close()
    assert visit.complaints == []


def number_of(words: str) -> float:
    found = re.search(r"[\d,.]*\d", words)
    assert found, words
    return float(found.group().replace(",", ""))


def jobs_cancelled(server: ServerProcess) -> float:
    with urlopen(server.url + "/metrics") as response:
        found = re.search(r'spec2seq_jobs_total\{outcome="cancelled"\} (\S+)', response.read().decode())
    return float(found.group(1)) if found else 0.0


def test_translates_with_every_token_marked_and_its_round_to_be_pointed_at(visit: Visit) -> None:
    visit.set_slider("Draft length", 6)
    visit.translate(EXAMPLE)
    (result,) = Pipeline.from_pretrained(MODEL).generate([EXAMPLE], num_draft_tokens=6)
    page, stats = visit.page, result.stats
    assert visit.text() == result.text
    assert page.locator("#output .token").count() == stats.num_tokens
    assert page.locator("#output .token.accepted").count() == stats.num_accepted > 0
    assert page.locator("#strip .column").count() == page.locator("#output .round").count() == stats.num_rounds
    assert page.locator("#strip .shape").count() == stats.num_tokens
    expect(page.locator("#verdict")).to_contain_text(f"{stats.num_tokens} tokens in {stats.num_rounds} rounds")

    page.locator("#output .round").nth(2).hover()
    expect(page.locator("#readout")).to_contain_text("Round 3, after")
    assert page.locator("#output .pointed").count() == page.locator("#strip .pointed").count() == 1
    page.locator("#strip .column").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).to_contain_text("Round 2, after")
    page.keyboard.press("End")
    expect(page.locator("#readout")).to_contain_text(f"Round {stats.num_rounds}, after")


def test_an_example_of_several_lines_keeps_them(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Three lines").click()
    expect(visit.page.locator("#status")).to_contain_text("Done", timeout=WAIT_MS)
    assert len(visit.text().split("\n")) == 3
    assert visit.page.locator(".strip-row").count() == 3


def test_races_and_names_a_winner(visit: Visit) -> None:
    page = visit.page
    visit.set_slider("Draft length", 6)
    page.fill("#source", EXAMPLE)
    page.click("#race")
    expect(page.locator("#same")).to_have_text("Both wrote the same text, token for token.", timeout=WAIT_MS)
    plain, drafted = (page.locator(f"#lane-{name} .figures dd").all_inner_texts() for name in ("plain", "drafted"))
    assert [words.split()[-1] for words in plain[:2]] == ["tokens/s", "ms"]
    assert number_of(plain[3]) == 1.0 < number_of(drafted[3])
    assert number_of(plain[2]) > number_of(drafted[2])
    is_close = abs(number_of(plain[1]) - number_of(drafted[1])) < 0.05 * max(number_of(plain[1]), number_of(drafted[1]))
    winners = page.locator(".lane.first").all()
    if winners:
        other = "plain" if winners[0].get_attribute("id") == "lane-drafted" else "drafted"
        loser = {"plain": plain, "drafted": drafted}[other]
        assert number_of(winners[0].locator(".figures dd").nth(1).inner_text()) < number_of(loser[1])
        expect(page.locator("#winner")).to_contain_text("as fast")
    else:
        assert is_close
        expect(page.locator("#winner")).to_contain_text("Too close to call")
    assert page.locator("#track-plain .tick").count() == number_of(plain[2])
    assert visit.text("#lane-plain .written") == visit.text("#lane-drafted .written") == visit.text()


def test_sliders_change_what_is_drafted_and_relaxed_output_is_compared(visit: Visit) -> None:
    page = visit.page
    visit.set_slider("Draft length", 0)
    visit.translate(HARD)
    exact = visit.text()
    assert page.locator("#output .token.accepted").count() == 0
    assert page.locator("#exact").is_hidden()

    page.get_by_role("button", name="As many as pay").click()
    visit.set_slider("Tolerance", 5)
    visit.set_slider("Candidates", 10)
    with page.expect_request(lambda request: "tau" in (request.post_data or "")) as asked:
        visit.translate(HARD)
    fields = asked.value.post_data_json
    assert (fields["num_draft_tokens"], fields["top_beta"], fields["tau"]) == ("auto", 10, 5)
    assert visit.text() != exact
    expect(page.locator("#verdict")).to_contain_text("Not exact")
    assert visit.text("#exact-output") == exact
    assert page.locator("#output .different").count() > 0

    visit.set_slider("Tolerance", 0)
    visit.translate(HARD)
    assert visit.text() == exact
    assert page.locator("#output .different").count() == 0
    expect(page.locator("#verdict")).not_to_contain_text("Not exact")


def test_errors_come_in_plain_words(visit: Visit) -> None:
    page = visit.page
    page.fill("#source", " \n")
    page.click("#race")
    expect(page.get_by_role("alert")).to_contain_text("There is no text yet")
    for button in ("#translate", "#race"):
        page.fill("#source", "\u200b\x1c")
        page.click(button)
        expect(page.get_by_role("alert")).to_contain_text("Nothing of this text shows", timeout=WAIT_MS)
    page.fill("#source", "a " * MAX_CHARS)
    page.click("#translate")
    expect(page.get_by_role("alert")).to_contain_text("This text is too long for this server", timeout=WAIT_MS)
    expect(page.get_by_role("alert")).to_contain_text(str(MAX_CHARS))

    busy = {"status": 429, "headers": {"retry-after": "1"}, "json": {"error": "128 requests wait"}}
    page.route("**/v1/trace", lambda route: route.fulfill(**busy))
    page.fill("#source", EXAMPLE)
    page.click("#translate")
    expect(page.get_by_role("alert")).to_contain_text("its queue is full. Try again in 1 s.")
    page.unroute("**/v1/trace")

    page.route("**/v1/trace", lambda route: route.abort())
    page.click("#translate")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    page.unroute("**/v1/trace")

    cut = 'event: start\ndata: {"pieces":["a"],"separators":["",""],"drafter":null,"is_exact":true}\n\n'
    page.route("**/v1/trace", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=cut))
    page.click("#translate")
    expect(page.get_by_role("alert")).to_contain_text("lost before the text was finished")
    page.unroute("**/v1/trace")

    visit.translate(EXAMPLE)
    assert page.get_by_role("alert").count() == 0


def test_cancelling_stops_the_server_too(visit: Visit, server: ServerProcess) -> None:
    page, before = visit.page, jobs_cancelled(server)
    page.fill("#source", "\n".join(["and the files of it"] * 100))  # many batches one after the other
    page.click("#translate")
    expect(page.locator("#output .token").first).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_contain_text("Cancelled")
    for _ in range(100):
        if jobs_cancelled(server) == before + 1:
            break
        page.wait_for_timeout(100)
    assert jobs_cancelled(server) == before + 1
    visit.translate(f"\n  \n{EXAMPLE}\n\n")
    assert visit.text().startswith("\n  \n")


def test_works_with_the_keyboard_alone(visit: Visit) -> None:
    page = visit.page
    page.locator("#source").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(EXAMPLE)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_contain_text("Done", timeout=WAIT_MS)
    assert page.evaluate("document.activeElement.id") == "source"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1240, 360])
def test_passes_an_accessibility_check(browser: Any, server: ServerProcess, scheme: str, width: int) -> None:
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    )
    visit = Visit(context, server.url)
    fresh = axe.Axe().run(visit.page)
    assert fresh.violations_count == 0, fresh.generate_report()
    visit.set_slider("Tolerance", 5)
    visit.page.fill("#source", HARD)
    visit.page.click("#race")
    expect(visit.page.locator("#same")).to_contain_text("Not the same text", timeout=WAIT_MS)
    visit.page.locator("#output .round").first.hover()
    finished = axe.Axe().run(visit.page)
    assert finished.violations_count == 0, finished.generate_report()
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    visit.page.fill("#source", "a " * MAX_CHARS)
    visit.page.click("#translate")
    expect(visit.page.get_by_role("alert")).to_be_visible(timeout=WAIT_MS)
    refused = axe.Axe().run(visit.page)
    assert refused.violations_count == 0, refused.generate_report()
    background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")
    context.close()
    assert visit.complaints == []
