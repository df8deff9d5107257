"""The console in headless Chromium, over the places of the README: what it shows, and that it can be used."""

import sys
import threading
import time

import redis
from playwright.sync_api import sync_playwright

port, console, chromium, picture = sys.argv[1:]
client = redis.Redis(port=int(port), client_name="reader")
client.execute_command("ORDNA.SNAPSHOT", "CREATE", "KEEP")
client.set("SE:Uppsala:2666199", "changed")
client.config_set("slowlog-log-slower-than", 0)
client.execute_command("ORDNA.COUNT", "-", "+")
client.config_set("slowlog-log-slower-than", 10_000)
busy = threading.Event()


def work():
    own = redis.Redis(port=int(port), client_name="worker")
    while not busy.is_set():
        pipeline = own.pipeline(transaction=False)
        [pipeline.get("SE:Uppsala:2666199") for _ in range(50)]
        pipeline.execute()
        time.sleep(0.01)


worker = threading.Thread(target=work, daemon=True)
worker.start()


def until(condition, what):
    """The page's policy forbids it to evaluate text, so its state is asked for from here."""
    patience = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < patience, what
        time.sleep(0.05)


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
    )
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    errors, elsewhere = [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: line.type == "error" and errors.append(line.text))
    origin = f"http://127.0.0.1:{console}/"
    page.on("request", lambda request: request.url.startswith(origin) or elsewhere.append(request.url))
    page.goto(origin)
    rows = lambda: page.locator("#entries tr").count()
    keys = lambda: page.locator("#entries code:not(.value)").all_text_contents()
    number = lambda name: int(page.text_content(f"#{name}").replace(",", ""))
    until(lambda: rows() > 10, "rows")
    until(lambda: page.text_content("#rate") != "–" and number("rate") > 100, "commands are counted")
    assert number("keys") == client.dbsize(), page.text_content("#keys")
    assert number("count") >= 2
    first = keys()
    assert first == sorted(first) and len(first) > 10

    # The button leads to the next page, and back to the first one.
    page.click("#next")
    until(lambda: keys()[:1] not in ([], first[:1]), "another page")
    assert keys()[0] > first[-1]
    page.click("#back")
    until(lambda: keys() == first, "the first page")

    # Types a prefix, checks the neighbours, and opens a value.
    page.fill("#prefix", "SE:Upp")
    until(lambda: rows() == 2, "rows")
    assert keys() == ["SE:Upplands Väsby:2666238", "SE:Uppsala:2666199"], keys()
    assert "changed" in page.text_content("#entries")
    assert "nearest below: SE:" in page.text_content("#near"), page.text_content("#near")
    page.locator("#entries tr").last.click()
    assert page.locator("#entries tr.open").count() == 1
    page.fill("#prefix", "nothing has this")
    until(lambda: page.text_content("#entries") == "no keys", "no keys")
    page.fill("#prefix", "SE:U")
    until(lambda: rows() > 2, "rows")

    # Plots are updated, and the tables show the snapshot, the slow command and the clients.
    until(lambda: page.locator("#rates polyline").count() == 1, "a plot")
    until(lambda: page.locator("#times polyline").count() == 2, "a plot")
    assert page.text_content("#p-snapshots") == "1"
    assert "ORDNA.COUNT" in page.text_content("#slow").upper(), page.text_content("#slow")
    clients = page.text_content("#clients")
    assert "worker" in clients and "reader" in clients and "get" in clients, clients
    assert page.text_content("#lost") == ""
    page.wait_for_timeout(8_000)
    if picture != "/dev/null":
        page.screenshot(path=picture)
    # A key that looks like markup is shown as text.
    client.set("<img src=x onerror=alert(1)>", "<b>bold</b>")
    page.fill("#prefix", "<img")
    until(lambda: rows() == 1, "rows")
    assert page.locator("#entries img, #entries b").count() == 0
    assert not errors, errors
    assert not elsewhere, elsewhere
    browser.close()
busy.set()
worker.join()
print("the console: all passed")
