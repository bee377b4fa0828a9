"""Texts from disk to a coreset that can be read, and what is refused."""
import json, os
from pathlib import Path

import pytest, torch
from torch import Generator

from bpc_nb.core import Coreset
from bpc_nb.data import load, match
from bpc_nb.explorer import tiles
from bpc_nb.networks import network
from bpc_nb.spaces import sentences_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch): monkeypatch.setenv('BPC_CACHE', str(tmp_path/'.cache'))


def rows(n): return [(k, f'{w} is the {o} {s} ?') for k,w in (('place','Where'), ('person','Who')) for o in ('old','new','red') for s in ('sea','hill','cat')][:n] * 3

def put(path, rows, head='label\ttext'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join([head, *('\t'.join(r) for r in rows)]) + '\n', encoding='utf-8')
    return path

@pytest.fixture
def folder(tmp_path):
    for part in ('train', 'test'): put(tmp_path/'text'/'trec6'/f'{part}.tsv', rows(18))
    return tmp_path


def test_a_named_set_is_found_by_root_by_the_variable_and_as_a_folder(folder, monkeypatch):
    a = load('trec6', root=folder)
    monkeypatch.setenv('BPC_DATA', str(folder))
    for d in (load('trec6'), load(folder/'text'/'trec6'), load('trec6', root=folder/'text')):
        assert d.meta['checksum']==a.meta['checksum'] and d.train.x.equal(a.train.x) and d.classes==('person','place')
    one = load(folder/'text'/'trec6'/'train.tsv') # a file alone lends a fold
    assert len(one.test.y)==11 and one.meta['recipe']['fold']==0


def test_words_and_vectors_come_from_the_training_sentences_alone(folder):
    a = load('trec6', root=folder)
    put(folder/'text'/'trec6'/'test.tsv', rows(18) + [('place', 'Where is xyzzy xyzzy ?')])
    b = load('trec6', root=folder)
    assert a.words.equal(b.words) and 'xyzzy' not in b.meta['text']['words'] and b.meta['text']['rare'] > 0
    assert sentences_of(Coreset(b.test.x[-1:], b.test.y[-1:], words=b.words, meta=b.meta))==['where is <rare> <rare> ?']
    t = [load('trec6', root=folder, seed=s).train.x for s in (0, 1)]
    assert not t[0].equal(t[1])


def test_the_explorer_shows_sentences_as_words(folder):
    b = load('trec6', root=folder)
    shown = tiles(Coreset(b.test.x[:2], b.test.y[:2], classes=b.classes, words=b.words, meta=b.meta))
    assert shown.startswith('<pre>') and '<img' not in shown
    assert all(s in shown for s in sentences_of(Coreset(b.test.x[:2], b.test.y[:2], words=b.words, meta=b.meta)))


def test_a_coreset_file_is_enough_to_read_its_sentences(folder, tmp_path):
    d = load('trec6', root=folder)
    s = d.draw(2, Generator().manual_seed(0))
    s.save(tmp_path/'s.safetensors')
    again = Coreset.load(tmp_path/'s.safetensors')
    assert sentences_of(again)==sentences_of(s) and all(t.endswith('?') for t in sentences_of(s)) and match(d, again) is d


def test_other_vectors_of_the_same_words_meet_by_the_words(folder):
    d = load('trec6', root=folder)
    s = d.draw(2, Generator().manual_seed(0))
    turned = s._replace(words=s.words.flip(1), x=s.x.flip(2))
    assert match(d, turned).test.x.equal(d.test.x.flip(2))


BAD = [([('place','where ?'), ('person',' ')], {}, 'holds no word'), ([('place','where ?'), ('','who ?')], {}, 'has no label'),
       ([('place','where where')]*9, {}, 'are of one class'), ([('place',)], {}, 'has 1 columns, and its first line names 2'), ([], {}, 'holds no rows'),
       (rows(18), dict(label='kind'), "unknown 'kind' (one of label, text)"), (rows(18), dict(text='words'), "unknown 'words'"),
       (rows(18), dict(length=0), 'length: expected a whole number of at least 1'), (rows(18), dict(zca=True), 'zca is for images'),
       ([(k, ' '.join(['a']*300)) for k in 'uv']*9, {}, '200 are the most that are taken unasked; pass length='),
       ([(k, f'{k}{i}') for k in 'uv' for i in range(9)], {}, 'no word occurs twice')]

@pytest.mark.parametrize('lines,options,said', BAD, ids=[b[2][:30] for b in BAD])
def test_what_is_no_text_is_refused(tmp_path, lines, options, said):
    with pytest.raises(ValueError) as e: load(put(tmp_path/'t.tsv', lines), **options)
    assert said in str(e.value) and '\n' not in str(e.value), e.value


def test_networks_refuse_what_they_cannot_take(folder):
    d = load('trec6', root=folder)
    for net in ('textconv:width=4', 'bilstm:width=4', 'mlp:width=4', 'logistic'): assert network(net, d.shape, 2).apply(network(net, d.shape, 2).init(Generator()), d.test.x).shape==(54, 2)
    with pytest.raises(ValueError, match='convnet takes images'): network('convnet', d.shape, 2)
    with pytest.raises(ValueError, match='textconv takes sentences'): network('textconv', (1, 8, 8), 2)


def test_the_command_line_learns_shows_and_judges_sentences(bpc, folder):
    small = '--net textconv:width=4 --epochs 2 --steps 2 --every 1 --real 8 --json'.split()
    code, out, err = bpc('distill', 'trec6', '--root', folder, '--method', 'tdd', '--ipc', 2, '--out', 'run', *small)
    assert code==0 and json.loads(out)['tsv']=='run/coreset.tsv', err
    assert Path('run/coreset.tsv').read_text().splitlines()[0]=='label=person\tlabel=place\ttext'
    code, out, _ = bpc('show', 'run/coreset.safetensors', '--json')
    assert code==0 and json.loads(out)['sentences'][0]==4
    code, out, err = bpc('evaluate', 'run/coreset.safetensors', '--root', folder, '--control', '--runs', 1, '--json')
    assert code==0 and {'accuracy_mean', 'accuracy_mean_random'} <= json.loads(out).keys() and 'accuracy_mean_8bit' not in json.loads(out), err
    code, _, err = bpc('distill', 'trec6', '--root', folder, '--method', 'tdd', '--decode', 'factor2')
    assert code==2 and 'decode' in err
    code, out, err = bpc('plan', 'trec6', '--root', folder, '--method', 'tdd', *small)
    assert code==0 and json.loads(out)['step_seconds'] > 0, err
