"""The explorer in a real browser: Voila serves a run, Chromium moves a slider, another picture appears; and what is no run."""
import json, os, re, shutil, signal, socket, subprocess, sys, time
from importlib.util import find_spec
from pathlib import Path

import pytest

from bpc_nb.distill import distill
from conftest import NET

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or shutil.which('google-chrome')
MISSING = [p for p in ('ipywidgets', 'voila', 'playwright') if not find_spec(p)] + ['a Chromium']*(not CHROMIUM)
in_browser = pytest.mark.skipif(bool(MISSING), reason=f"not here: {', '.join(MISSING)}")
EXPLORE = 'import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from bpc_nb.cli import main; sys.exit(main())'


@pytest.fixture(scope='module')
def runs(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp('runs')
    for L in 0, 8: distill('cd', 'digits', 1, folder/f'L{L}', L=L, net=NET, experts=dict(n=2, epochs=5), steps=40, every=20, select_runs=1, T=2, k_max=2, progress=False)
    return folder


@pytest.fixture(scope='module')
def families(runs, tmp_path_factory):
    "What is no plain run of images, in the same folder: soft labels, a schedule, sentences, a memory, chosen images, and an audit of a run"
    from bpc_nb.data import load
    from bpc_nb.memory import remember
    from test_text import put, rows
    few = dict(steps=2, every=1, select_runs=1, progress=False)
    distill('cd', 'digits', 1, runs/'soft', labels='soft', L=2, net=NET, experts=dict(n=2, epochs=5), T=2, k_max=2, **few)
    distill('dd', 'digits', 1, runs/'schedule', net='mlp:width=8', **few)
    text = load(put(tmp_path_factory.mktemp('text')/'questions.tsv', rows(18)))
    distill('tdd', text, 1, runs/'words', net='textconv:width=4', real=8, epochs=2, **few)
    remember(load('digits'), runs/'memory', per_class=1, options=dict(features='pixels', net='mlp:width=8', select_runs=1), progress=False)
    distill('herding', 'digits', 1, runs/'chosen', net='mlp:width=8', features='pixels', select_runs=1, progress=False)
    (runs/'L0'/'coreset.html').write_text('<p>what an audit found</p>')


@pytest.fixture(scope='module')
def url(runs, families):
    p = subprocess.Popen([sys.executable, '-c', EXPLORE, 'explore', str(runs/'L8'), '--stay', '--json'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | dict(PYTHONPATH=str(ROOT)))
    said = p.stdout.readline()
    assert said, p.stderr.read()
    yield json.loads(said)['url']
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    assert p.returncode == 0 and 'Traceback' not in err, err


@pytest.fixture(scope='module')
def page(url):
    from playwright.sync_api import sync_playwright
    with sync_playwright() as pw:
        b = pw.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-gpu', '--disable-quic'])
        page = b.new_page(viewport=dict(width=1400, height=1500))
        page.wrong = []
        page.on('pageerror', lambda e: page.wrong.append(str(e)))
        began = time.perf_counter()
        page.goto(url)
        page.locator('.bpc img').first.wait_for(timeout=120_000)
        page.opened = time.perf_counter() - began
        page.locator('.jupyter-widgets .bpc img').first.wait_for(timeout=120_000)
        page.live = time.perf_counter() - began
        yield page
        b.close()


def figures(page): return page.locator('.widget-html-content > img').evaluate_all('l => l.map(i => i.src)')
def tiles(page): return page.locator('.jupyter-widgets .bpc img').evaluate_all('l => l.map(i => i.src)')

def slide(page, name, *keys):
    row = page.locator('.widget-inline-hbox', has=page.get_by_text(name, exact=True))
    row.locator('.noUi-handle').focus()
    for k in keys: page.keyboard.press(k)

def until(page, f, old, seconds=60):
    "The first answer that is not the old one"
    end = time.monotonic() + seconds
    while (new := f(page)) == old and time.monotonic() < end: page.wait_for_timeout(50)
    assert new != old
    return new


@in_browser
def test_a_page_opens_with_images_curves_and_a_chain(page):
    print(f'a first picture after {page.opened:.1f} s, the page after {page.live:.1f} s')
    assert page.opened < page.live and not page.locator('.first').is_visible() # the first picture needs no kernel, and goes when the page is there
    assert page.opened < max(3, page.live/2) # s; a busy machine is slow at both
    assert len(tiles(page)) == 10
    page.wait_for_timeout(200)
    curves, chain = figures(page)
    assert curves != chain and 'L8: cd on digits, 1 per class' in page.locator('body').inner_text()


@in_browser
def test_the_page_uses_its_width(page):
    def span():
        page.wait_for_timeout(500)
        edges = page.locator('.jupyter-widgets img').evaluate_all('l => l.map(i => i.getBoundingClientRect()).map(r => [r.left, r.right])')
        return min(left for left, _ in edges), max(right for _, right in edges)
    for width in 1000, 1400:
        page.set_viewport_size(dict(width=width, height=1500))
        left, right = span()
        assert right - left > .75*width and right <= width, (width, left, right)


@in_browser
def test_a_slider_moves_and_the_picture_changes(page):
    curves, chain = figures(page)
    slide(page, 'L', 'ArrowRight')
    new = until(page, figures, [curves, chain])
    assert new[0] == curves and new[1] != chain
    slide(page, 'L', 'ArrowLeft')
    assert until(page, figures, new) == [curves, chain] # the same draw, the same chain
    for name in 'alpha', 'temperature':
        old = figures(page)
        slide(page, name, 'ArrowRight', 'ArrowRight')
        until(page, figures, old)
    images = tiles(page)
    slide(page, 'outer step', 'ArrowLeft')
    other = until(page, tiles, images)
    assert len(other) == 10
    slide(page, 'outer step', 'ArrowRight')
    assert until(page, tiles, other) == images
    if out := os.environ.get('SHOT'): page.screenshot(path=out)


@in_browser
def test_a_pointer_on_an_image_is_told_what_it_is(page):
    page.locator('.jupyter-widgets .bpc div').nth(3).hover()
    tip = page.locator('.jupyter-widgets .bpc div').nth(3).evaluate("e => getComputedStyle(e, '::after').content")
    assert re.search(r'class 3\\?.*energy under theta\+ \d.*energy under theta- \d', tip, re.S), tip


@in_browser
def test_a_page_follows_its_run(page, runs):
    looks, images = runs/'L8'/'looks', tiles(page)
    shutil.copy(looks/'000000.safetensors', looks/'000060.safetensors') # as if it had gone on, to other images
    until(page, tiles, images)
    (looks/'000060.safetensors').unlink()
    until(page, lambda p: tiles(p) == images, False)


@in_browser
def test_a_second_run_stands_beside_the_first_and_students_predict(page, runs):
    page.locator('select').nth(1).select_option('L0')
    page.locator('.jupyter-widgets .bpc').nth(1).wait_for()
    assert len(tiles(page)) == 20
    page.get_by_role('button', name='train').click()
    page.get_by_text(re.compile(r'accuracy \d.*ECE')).nth(1).wait_for(timeout=120_000)
    old = figures(page)
    slide(page, 'test image', 'ArrowRight')
    until(page, figures, old)
    assert page.wrong == []
    audit = page.locator('details', has_text='audit of')
    audit.locator('summary').click()
    assert audit.locator('iframe').content_frame.locator('p').inner_text() == 'what an audit found'
    if out := os.environ.get('SHOT'): page.screenshot(path=out.replace('.png', '_two.png'), full_page=True)


@in_browser
@pytest.mark.parametrize('name, shown, many', [('soft', '.bpc svg', 10), ('schedule', '.bpc svg', 1), ('words', 'pre', 1), ('memory', '.bpc img', 10), ('chosen', '.bpc img', 10)])
def test_every_family_is_shown(page, name, shown, many):
    "Soft labels and step sizes as bars, sentences as words, a memory as its images"
    page.locator('select').nth(1).select_option('none')
    page.locator('select').nth(0).select_option(name)
    page.get_by_text(re.compile(f'^{name}: ')).first.wait_for()
    page.locator(f'.jupyter-widgets {shown}').nth(many-1).wait_for()
    assert page.locator(f'.jupyter-widgets {shown}').count() == many and page.wrong == []
    if name == 'schedule': assert 'learned step sizes' in page.locator('body').inner_text()
    if out := os.environ.get('SHOT'): page.screenshot(path=out.replace('.png', f'_{name}.png'), full_page=True)


def test_what_is_no_run(refused, runs, tmp_path):
    (tmp_path/'empty').mkdir()
    refused('explore', tmp_path/'none', parts='there is no folder')
    refused('explore', tmp_path/'empty', parts='holds no run')
    refused('explore', parts='there is no run in')
    cut, other = tmp_path/'cut', tmp_path/'other'
    for d, text in (cut, (runs/'L8'/'config.json').read_text()[:50]), (other, '{"method": "cd"}'): d.mkdir(); (d/'config.json').write_text(text)
    refused('explore', cut, parts=('config.json', 'cut off'))
    refused('explore', other, parts='another version')
    refused('explore', runs/'L8', '--beside', other, parts='another version')


@pytest.mark.skipif(not find_spec('voila'), reason='not here: voila')
def test_a_port_that_is_taken(refused, runs):
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0)); s.listen()
        refused('explore', runs/'L8', '--port', s.getsockname()[1], parts=('port: ', 'cannot be used', 'choose another one'))


def test_a_run_without_steps_opens(tmp_path):
    "Images that were chosen: no log, no looks, no chain"
    from bpc_nb.explorer import View, newest, open_run, snapshot
    distill('herding', 'digits', 1, tmp_path/'chosen', net='mlp:width=8', features='pixels', select_runs=1, progress=False)
    images, chain = snapshot(View(open_run(newest(tmp_path))), 0, 0, 2, .01, 0.)
    assert images.count('<img') == 10 and 'draws from no experts' in chain


def test_voila_is_not_here(refused, runs, monkeypatch):
    monkeypatch.setitem(sys.modules, 'voila', None)
    refused('explore', runs/'L8', parts=('voila', "pip install 'bpc_nb[explorer]'"))


def test_no_browser(bpc, runs, monkeypatch):
    from bpc_nb import explorer
    class Quick:
        returncode = 0
        def wait(self): pass
        terminate = wait
    monkeypatch.setattr(explorer, 'served', lambda *a: Quick())
    monkeypatch.setattr(explorer.webbrowser, 'open', lambda url: False)
    code, out, err = bpc('explore', runs/'L8')
    assert (code, err) == (0, '') and 'no browser was found here: open this address' in out and 'http://127.0.0.1:' in out


def test_a_chain_sees_what_students_see(runs, monkeypatch):
    "Four examples of each stored image, with the loss that fits its labels"
    import torch
    from bpc_nb import explorer as e
    from bpc_nb.energy import energy
    r = e.open_run(runs/'L8')
    S, v, got, trace = e.newest_look(r, 40)._replace(decode='factor2'), e.View(r), [], e.trace_chain
    monkeypatch.setattr(e, 'newest_look', lambda *a: S)
    monkeypatch.setattr(e, 'trace_chain', lambda E, S, *a: got.append(S.x.shape) or trace(E, S, *a))
    images, chain = e.snapshot(v, 40, 0, 2, .01, 0.)
    assert got == [(40, 1, 8, 8)] and images.count('<img') == 10 and chain.startswith('<img')
    T = S._replace(y=torch.randn(10, 10), targets=True)
    m, theta = e.model_of_run(r, T), v.pair(S, 0)[1]
    squared = energy(m.net.apply, 'squared')(theta, T.examples())
    assert torch.allclose(m.each(theta, T).mean(), squared, rtol=1e-4) and torch.allclose(m.E(theta, T.examples()), squared, rtol=1e-4)
