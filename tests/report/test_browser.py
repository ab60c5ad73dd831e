"""The page in headless Chromium: it draws, filters, takes keys, fits a phone, says nothing on the console, and runs nothing of a rollout."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from report.made_runs import save_metrics, save_rollouts, skip_group, small_run
from report.webdriver import CHROMIUM, DRIVER, Browser

from skpo.report import write_report

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no chromium and chromedriver on the PATH (Debian: apt-get install chromium chromium-driver)",
)
LINES = "return document.querySelectorAll('.item').length"
SHOWN = "return document.getElementById('match-count').textContent"
DETAIL = "return document.getElementById('group-detail').innerText"
STEP = "return document.querySelector('.detail-head h2')?.textContent"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    """Two runs, the second with other settings."""
    other = "algorithm:\n  name: grpo\nsteps: 6\noptimizer:\n  lr: 0.2\n"
    runs = [small_run(folder / "first"), small_run(folder / "second", steps=6, shift=0.1, settings=other)]
    return write_report(runs, folder / "two.html").path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(autouse=True)
def _quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a console message behind, and nothing from a rollout has run."""
    yield
    if "browser" in request.fixturenames:
        browser: Browser = request.getfixturevalue("browser")
        assert browser.errors() == []
        assert browser.js("return window.hacked === undefined")


class TestOverview:
    def test_runs_and_evaluations(self, browser: Browser, page: Path) -> None:
        browser.open(page)
        text = browser.js("return document.getElementById('overview').innerText")
        assert "first" in text
        assert "second" in text
        assert "75.0 % ± 3.9" in text  # 1.96 * 0.02
        assert "15.2 – 34.8" in text  # 0.25 ± 1.96 * 0.05
        assert "not finite" in text  # the entropy at step 2
        browser.wait("return document.querySelectorAll('#overview path.line').length >= 4")
        assert (
            browser.js("return document.querySelectorAll('#overview path.area').length") == 4
        )  # rollout and train, twice

    def test_settings_that_differ(self, browser: Browser, page: Path) -> None:
        browser.open(page, "settings")
        rows = browser.js(
            "return [...document.querySelector('#settings .card').querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        )
        assert ["algorithm.name", "skpo", "grpo"] in rows
        assert ["optimizer.lr", "0.1", "0.2"] in rows
        assert ["steps", "4", "6"] in rows


class TestCurves:
    def paths(self, browser: Browser, metric: str) -> list[str]:
        return browser.js(
            f"return [...document.querySelectorAll('[data-metric={metric}] path.line')].map(p => p.getAttribute('d'))"
        )

    def open(self, browser: Browser, page: Path) -> None:
        browser.open(page, "curves")
        browser.wait("return document.querySelectorAll('[data-metric=entropy] path.line').length >= 2")

    def test_drawn_with_a_gap_where_not_finite(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        reward, entropy = self.paths(browser, "reward_mean"), self.paths(browser, "entropy")
        assert [p.count("L") for p in reward] == [3, 5]  # steps 1 to 4, and 1 to 6
        assert [p.count("M") for p in reward] == [1, 1]
        assert [p.count("M") for p in entropy] == [2, 2]  # before and after step 2
        assert browser.js("return document.querySelectorAll('[data-metric=entropy] path.bad').length") == 2

    def test_axis_log_and_smoothing(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        before = self.paths(browser, "lr")
        browser.click("#log-axis")
        after = self.paths(browser, "lr")
        assert before != after
        # 10^-1 to 10^-4 is a straight line on a log axis
        heights = [float(point.split()[1]) for point in after[0][1:].split("L")]
        steps = [b - a for a, b in pairwise(heights)]
        assert max(steps) - min(steps) < 0.3
        browser.click("#log-axis")
        browser.js(
            "const r = document.querySelector('#curves input[type=range]'); r.value = 1; r.dispatchEvent(new Event('input'))"
        )
        assert len(self.paths(browser, "reward_mean")) == 4  # pale and smooth, twice
        browser.js(
            "const s = document.querySelector('#curves select'); s.value = 'tokens'; s.dispatchEvent(new Event('change'))"
        )
        labels = browser.js(
            "return [...document.querySelectorAll('[data-metric=reward_mean] text.tick')].map(t => t.textContent)"
        )
        assert "400" in labels

    def test_runs_can_be_hidden_and_metrics_found(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        browser.click(".chip")
        assert len(self.paths(browser, "reward_mean")) == 1
        browser.js(
            "const f = document.getElementById('find-metric'); f.value = 'entropy'; f.dispatchEvent(new Event('input'))"
        )
        assert browser.js("return [...document.querySelectorAll('.metric')].filter(m => m.offsetParent).length") == 1


class TestRollouts:
    def open(self, browser: Browser, page: Path) -> None:
        browser.open(page, "rollouts")
        browser.wait("return document.querySelectorAll('#group-detail .row').length")

    def test_a_group(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        assert browser.js(SHOWN) == "9 groups"
        text = browser.js(DETAIL)
        for words in (
            "2 of 4 right",
            "mean reward 0.00",
            "4 segments, stopped at 3 tokens",
            "chosen",
            "−0.2000",
            "skip connection",
            "× 2",
            "answer 3",
        ):
            assert words in text, words
        assert browser.js("return document.querySelector('.from-segment').textContent") == "1+1"
        order = browser.js("return [...document.querySelectorAll('.segment .n')].map(e => e.textContent)")
        assert order == ["−0.1000", "−0.2000", "−0.3000", "−0.4000"]
        tokens = browser.js("return [...document.querySelector('.row.right .tokens').children].map(t => t.textContent)")
        assert tokens == ["1", "+", "2", "=", "3", "right", "<eos>"]

    def test_colours(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        kinds = browser.js("return [...document.getElementById('colour').options].map(o => o.value)")
        assert kinds == ["advantage", "nll", "entropy", "log_ratio", "none"]
        filled = "return [...document.querySelector('.row.right .tokens').children].map(t => t.style.backgroundColor)"
        first = browser.js(filled)
        assert "--up" in first[0]
        assert "--down" in first[1]  # advantages 1, -2, 0
        assert first[2] == ""
        browser.press("c")
        assert "--heat" in browser.js(filled)[2]  # log p = -3
        for _ in range(3):
            browser.press("c")
        assert set(browser.js(filled)) == {""}

    def test_keys(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        selected = "return document.querySelector('.item.on').dataset.group"
        browser.press("j")
        assert browser.js(selected) == "1"
        browser.press("down", "k")
        assert browser.js(selected) == "1"
        browser.press("right")
        browser.wait(STEP + " === 'Step 2 first'")
        browser.press("left")
        browser.wait(STEP + " === 'Step 1 first'")
        browser.press("?")
        assert browser.js("return document.getElementById('help').open")
        browser.press("escape")
        assert not browser.js("return document.getElementById('help').open")
        browser.press("/")
        assert browser.js("return document.activeElement.id") == "search"
        browser.press("escape", "2")
        assert browser.js("return document.body.dataset.view") == "curves"

    def test_filters(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)

        def choose(name: str, value: str) -> str:
            browser.js(
                "const f = document.querySelector(`[data-filter=${arguments[0]}]`); f.value = arguments[1];"
                "f.dispatchEvent(new Event(f.tagName === 'SELECT' ? 'change' : 'input'))", name, value,
            )  # fmt: skip
            return browser.js(SHOWN)

        assert choose("outcome", "none") == "5 of 9 groups"  # four hard ones and the hostile one
        assert choose("from", "3") == "2 of 9 groups"
        browser.click("#clear")
        assert browser.js(SHOWN) == "9 groups"
        assert choose("problem", "even") == "4 of 9 groups"
        assert choose("verdict", "wrong") == "4 of 9 groups"
        browser.wait("return !document.querySelector('.row.right')")
        assert choose("role", "segment") == "4 of 9 groups"
        browser.wait("return !document.querySelector('.row.wrong')")
        assert choose("problem", "no such problem") == "0 of 9 groups"
        browser.wait("return document.getElementById('group-detail').innerText.includes('Nothing fits')")
        browser.press("x")
        assert browser.js(SHOWN) == "9 groups"
        browser.js("const r = document.getElementById('run-choice'); r.value = 1; r.dispatchEvent(new Event('change'))")
        assert browser.js(SHOWN) == "13 groups"

    def test_search(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        browser.press("/", *"right")
        browser.wait(SHOWN + " === '4 of 9 groups'")  # only groups with a right completion
        assert browser.js("return document.querySelectorAll('.t.hit').length") > 0

    def test_hostile_text_is_text(self, browser: Browser, page: Path) -> None:
        self.open(browser, page)
        browser.press("j", "j")
        browser.wait("return document.getElementById('group-detail').innerText.includes('window.hacked = 1')")
        assert "<script>" in browser.js(DETAIL)
        assert browser.js("return document.querySelectorAll('#rollouts img, #rollouts script').length") == 0


class TestSmallRuns:
    def test_empty_states(self, browser: Browser, folder: Path) -> None:
        run = folder / "bare"
        save_metrics(run, [{"step": 1, "loss": None, "seconds": 1.0, "seconds_train": 1.0}])
        page = write_report([run]).path
        browser.open(page)
        assert "No evaluation" in browser.js("return document.body.innerText")
        browser.open(page, "curves")
        browser.wait("return document.querySelector('[data-metric=loss] svg')")
        assert "no finite value" in browser.js("return document.querySelector('[data-metric=loss]').textContent")
        browser.open(page, "rollouts")
        assert "No rollouts here" in browser.js("return document.body.innerText")
        browser.open(page, "settings")
        assert "No settings" in browser.js("return document.body.innerText")

    def test_without_a_tokenizer(self, browser: Browser, folder: Path) -> None:
        save_rollouts(folder / "plain", 1, skip_group(1, "a", [True, False, True, False]))
        browser.open(write_report([folder / "plain"]).path, "rollouts")
        browser.wait("return document.querySelectorAll('#group-detail .row').length")
        text = browser.js(DETAIL)
        assert "No tokenizer" in text
        assert "1+2=3" in text


class TestPhone:
    def test_list_then_group(self, page: Path, folder: Path) -> None:
        with Browser(390, 844) as phone:
            phone.open(page)
            for view in ("overview", "curves", "rollouts", "settings"):
                phone.click(f"#tab-{view}")
                phone.wait(
                    f"return !document.getElementById('{view}').hidden && !document.getElementById('{view}').innerText.includes('Opening')"
                )
                wide = phone.js("return [document.documentElement.scrollWidth, innerWidth]")
                assert wide[0] <= wide[1], view
            phone.click("#tab-rollouts")
            phone.wait(LINES)
            assert not phone.js("return document.getElementById('group-detail').offsetParent")
            phone.click(".item")
            phone.wait(
                "return document.getElementById('group-detail').offsetParent && document.querySelectorAll('.row').length"
            )
            png = phone.screenshot(folder / "phone.png")
            assert png[:8] == b"\x89PNG\r\n\x1a\n"
            assert len(zlib.compress(png)) > 20_000  # something is on it
            phone.click(".back")
            assert phone.js("return document.querySelector('.list').offsetParent !== null")
            assert phone.errors() == []


def test_light_and_dark(browser: Browser, page: Path) -> None:
    browser.open(page)
    colour = "return getComputedStyle(document.body).backgroundColor"
    first = browser.js(colour)
    browser.press("t")
    assert browser.js(colour) != first
    browser.press("t")
    assert browser.js(colour) == first
