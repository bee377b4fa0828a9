"""Tables: from a CSV file to a coreset of rows and back, and what is refused on the way."""
import csv, json, math

import numpy as np
import pytest
import torch
from torch import Generator
from sklearn import datasets

from bpc_nb.core import Coreset
from bpc_nb.data import load, match
from bpc_nb.distill import distill
from bpc_nb.evaluate import PROTOCOLS, evaluate, students
from bpc_nb.networks import network
from bpc_nb.predictive import predictive
from bpc_nb.spaces import as_table, save_table

SHORT = dict(steps=4, every=2, L=2, select_runs=1, net='logistic', experts=dict(n=2, epochs=5), progress=False)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch): monkeypatch.setenv('BPC_CACHE', str(tmp_path/'.cache'))


def write(path, head, rows):
    with open(path, 'w', newline='') as f: csv.writer(f).writerows([head, *rows])
    return path


def table(path, name='iris'):
    "One of scikit-learn's tables, with a column of words and a truth value"
    d = getattr(datasets, f'load_{name}')()
    low, high = np.quantile(d.data[:,0], [1/3, 2/3])
    rows = [[*v, 'small' if v[0] < low else 'large' if v[0] > high else 'middle', str(v[1] > d.data[:,1].mean()).lower(), d.target_names[k]] for v,k in zip(d.data.tolist(), d.target)]
    return write(path, [*d.feature_names, 'size', 'wide', 'species'], rows)


def refused_by(f, *parts):
    with pytest.raises(ValueError) as e: f()
    assert all(p in str(e.value) for p in parts) and '\n' not in str(e.value), e.value


@pytest.mark.parametrize('name,D,K', [('iris', 4+4, 3), ('wine', 13+4, 3), ('breast_cancer', 30+4, 2)])
def test_standardised_one_hot_and_back(tmp_path, name, D, K):
    d = load(table(tmp_path/f'{name}.csv', name), label='species')
    x, n = d.train.x, D-4
    assert (d.name, d.shape, d.K) == (name, (D,), K) and x.dtype==torch.float32
    assert torch.allclose(x[:,:n].mean(0), torch.zeros(n), atol=1e-4) and torch.allclose(x[:,:n].var(0, correction=0), torch.ones(n), atol=1e-3)
    assert set(x[:,n:].unique().tolist()) == {0., 1.} and (x[:,n:n+3].sum(1)==1).all()
    whole = {k:[float(r[k]) for r in csv.DictReader(open(tmp_path/f'{name}.csv'))] for k in csv.DictReader(open(tmp_path/f'{name}.csv')).fieldnames[:n]}
    every = torch.cat([d.transform.inverse(p.x) for p in (d.train, d.held, d.test)]) # no row is lost, and none is changed
    for i,v in enumerate(whole.values()): assert np.allclose(np.sort(v), every[:,i].sort().values, rtol=1e-4, atol=1e-4)


def test_a_written_coreset_is_a_table_again(tmp_path):
    d = load(table(tmp_path/'iris.csv'), label='species')
    s = d.draw(8, Generator().manual_seed(0))
    save_table(s, tmp_path/'few.csv')
    few = load(tmp_path/'few.csv', label='species', held_out=0.)
    assert few.classes==d.classes and few.meta['table']==d.meta['table']
    rows = lambda d: sorted(as_table(Coreset(d.transform.inverse(torch.cat([d.train.x, d.test.x])), torch.cat([d.train.y, d.test.y]), classes=d.classes, meta=d.meta))[1])
    assert rows(few)==sorted(as_table(s)[1])


def test_folds_hold_each_row_once_and_the_transform_never_sees_the_test_part(tmp_path):
    path = table(tmp_path/'iris.csv')
    ds = [load(path, label='species', fold=f) for f in range(5)]
    assert sum(len(d.test.y) for d in ds)==150 and len({tuple(d.transform.mean.tolist()) for d in ds})==5
    assert ds[0].meta['checksum']==ds[1].meta['checksum'] and ds[0].transform.mean[-4:].tolist()==[0]*4
    own = [ds[0].transform.inverse(p.x) for p in (ds[0].train, ds[0].held)]
    assert torch.allclose(ds[0].transform.mean[:4], own[0][:,:4].mean(0), atol=1e-4) and not torch.allclose(ds[0].transform.mean[:4], torch.cat(own)[:,:4].mean(0), atol=1e-4)


def test_parquet_and_folders_give_the_same_rows(tmp_path):
    import pyarrow.csv as pc, pyarrow.parquet as pq
    t = pc.read_csv(table(tmp_path/'iris.csv'))
    pq.write_table(t, tmp_path/'iris.parquet')
    a, b = (load(tmp_path/f, label='species') for f in ('iris.csv', 'iris.parquet'))
    refused_by(lambda: load(tmp_path/'iris.parquet'), 'expected columns img or image', 'where it is a table, name its column of classes with label=')
    assert a.train.x.equal(b.train.x) and a.meta['checksum']==b.meta['checksum']
    (both := tmp_path/'both').mkdir()
    i = np.random.default_rng(0).permutation(150)
    for part,j in dict(train=i[:100], test=i[100:]).items(): pc.write_csv(t.take(j), both/f'{part}.csv')
    d = load(both, label='species')
    assert (d.name, len(d.train.y)+len(d.held.y), len(d.test.y)) == ('both', 100, 50)
    refused_by(lambda: load(both, label='species', fold=1), 'fold: this data set has a test part of its own')


def test_a_constant_column_and_a_large_offset(tmp_path):
    d = load(write(tmp_path/'t.csv', ['a','b','year','y'], [[7, 1e-9*i, 2000+i%5, 'uv'[i%2]] for i in range(40)]), label='y')
    assert d.transform.std[0]==1 and (d.train.x[:,0]==0).all()
    assert torch.allclose(d.train.x[:,1:].std(0, correction=0), torch.ones(2), atol=1e-3)


BAD = [ # head, rows, label, what the sentence says
    (['a','y'], [[1,'u'],['','v'],['','u']], 'y', ["column 'a' has 2 missing values in 3 rows"]),
    (['a','c','y'], [[1,'x','u'],[2,'','v']], 'y', ["column 'c' has 1 missing value in 2 rows"]),
    (['a','y'], [[1,'u'],[2,'']], 'y', ["column 'y' has 1 missing value"]),
    (['a','y'], [[1,'u'],[2,'v']], 'why', ["label: unknown 'why'", "(one of a, y)"]),
    (['a','species'], [[1,'u'],[2,'v']], 'specis', ["did you mean 'species'?"]),
    (['a','y'], [[1,'u'],[2,'v']], None, ['is a table; name the column that holds the classes', 'one of a, y']),
    (['a','y'], [[1, i/7] for i in range(51)], 'y', ["column 'y' holds 51 different numbers", 'regression']),
    (['a','y'], [[1, 1.5],[2, .5]], 'y', ['label: expected whole numbers or strings as labels, found 1.5']),
    (['a','y'], [[1,'u'],[2,'u']], 'y', ["all rows of t are of one class, 'u'"]),
    (['a','y'], [*([i,'u'] for i in range(5)),[3,'v']], 'y', ["class 'v' has one example"]),
    (['a','y'], [['2020-01-01','u'],['2020-01-02','v']], 'y', ["column 'a' holds date32[day]; expected numbers"]),
    (['a','y'], [['?','u'],[2,'v'],[3,'v'],[4,'u']], 'y', ["column 'a' holds '?' among numbers (row 1, 1 in all)"]),
    (['id','y'], [[f'k{i}','uv'[i%2]] for i in range(101)], 'y', ["column 'id' holds 101 different texts"]),
    (['a','y'], [['inf','u'],[2,'v']], 'y', ["column 'a' has 1 infinite value in 2 rows"]),
    (['','y'], [[1,'u'],[2,'v']], 'y', ['a column without a name']),
    (['a','a','y'], [[1,1,'u']], 'y', ["two columns 'a'"]),
    (['y'], [['u'],['v']], 'y', ["no column beside the label 'y'"]),
    (['a','y'], [], 'y', ['holds no rows'])]

@pytest.mark.parametrize('head,rows,label,parts', BAD, ids=[b[3][0][:40] for b in BAD])
def test_what_is_no_table_of_classes_is_refused(tmp_path, head, rows, label, parts):
    refused_by(lambda: load(write(tmp_path/'t.csv', head, rows), label=label), *parts)


def test_options_of_images_are_refused_for_tables_and_the_other_way_round(tmp_path):
    path = table(tmp_path/'iris.csv')
    for k,v in dict(size=8, zca=True, skip_bad=True).items(): refused_by(lambda: load(path, label='species', **{k:v}), f'{k}: found', 'is a table')
    refused_by(lambda: load('digits', label='species'), "label: 'species' is a column of a table", "'digits'")
    (tmp_path/'bad.parquet').write_bytes(b'PAR1 no')
    refused_by(lambda: load(tmp_path/'bad.parquet', label='y'), 'bad.parquet is not a readable table')


def test_networks_and_augmentation_say_that_they_are_of_images(tmp_path):
    d = load(table(tmp_path/'iris.csv'), label='species')
    s = d.draw(2, Generator().manual_seed(0))
    for net in 'convnet','lenet','alexnet','vgg11','resnet18','torchvision:resnet18': refused_by(lambda: network(net, d.shape, d.K), 'takes images (C,H,W), and the data has rows of 8 numbers; take mlp or logistic')
    net = network('logistic', d.shape, d.K)
    a, b = (students(s, net, 2, epochs=5, augment=how) for how in ('', 'color_crop_cutout_flip_scale_rotate'))
    assert a.equal(b)
    refused_by(lambda: distill('cd', d, 1, out=tmp_path/'aug', augment='crop', **SHORT), "augment: 'crop' changes images", 'leave augment out')
    refused_by(lambda: s.quantised(), '8-bit pixels are made of images')


@pytest.mark.parametrize('method', ['cd', 'fkl', 'rkl', 'wasserstein', 'random', 'herding', 'k-center', 'forgetting', 'dc', 'dm'])
def test_methods_learn_rows(tmp_path, method):
    d = load(table(tmp_path/'iris.csv'), label='species')
    kw = {k:v for k,v in SHORT.items() if method in ('cd','fkl','rkl') or k not in ('L',)}
    if method in ('random','herding','k-center','forgetting'): kw = {k:v for k,v in kw.items() if k not in ('steps','every')}
    s = distill(method, d, 2, out=tmp_path/'run', **kw)
    assert tuple(s.x.shape)==(6, 8) and s.x.isfinite().all() and s.meta['table']==d.meta['table']
    assert (tmp_path/'run'/'coreset.csv').exists() and not (tmp_path/'run'/'coreset.png').exists()
    assert Coreset.load(tmp_path/'run'/'coreset.safetensors').meta['table']==d.meta['table']


def test_a_coreset_is_judged_on_the_same_columns_only(tmp_path):
    d = load(table(tmp_path/'iris.csv'), label='species')
    s = d.draw(2, Generator().manual_seed(0))
    r = evaluate(s, d, runs=2, net='logistic', epochs=20, control=True)
    assert not [k for k in r if '8bit' in k] and {'accuracy_mean_random','nll_mean'} <= r.keys()
    other = load(write(tmp_path/'o.csv', [*'abcd','size','wide','species'], [[*map(float, range(4)), c, 'true', y] for c,y in zip('xyxyxy', ['setosa','versicolor','virginica']*2)]), label='species', held_out=0.)
    refused_by(lambda: match(other, s), "coreset: column 'sepal length (cm)' is number in its table, and absent in o")
    refused_by(lambda: match(load('digits'), s), 'its rows are (8,), the images of digits are (1, 8, 8)')
    p = predictive(s, d, 'hmc', net='logistic', n=6, burn=2, warm=5, chains=2)
    assert math.isfinite(p['nll']) and p['n_test']==30


def test_the_command_line_from_a_table_to_a_judged_coreset(bpc, refused, tmp_path, monkeypatch):
    monkeypatch.setitem(PROTOCOLS['quick'], 'epochs', 200)
    table(tmp_path/'wine.csv', 'wine')
    code, out, err = bpc('distill', 'wine.csv', '--label', 'species', '--ipc', 2, '--json', '--out', 'run')
    found = json.loads(out)
    assert code==0 and found['csv'].endswith('coreset.csv') and 'png' not in found and found['held_out'] > .8
    assert next(csv.reader(open(found['csv'])))[-3:]==['size','wide','species']
    code, out, err = bpc('evaluate', found['coreset'], '--control', '--json') # finds the table by itself
    r = json.loads(out)
    assert code==0 and r['net']=='mlp' and r['accuracy_mean'] > r['accuracy_mean_random'] and r['nll_mean'] < r['nll_mean_random'], r
    code, out, err = bpc('evaluate', found['coreset'], '--control', '--runs', 2)
    assert code==0 and 'random real rows' in out and '8-bit' not in out and 'test rows of wine' in out
    code, out, err = bpc('show', found['coreset'])
    assert code==0 and 'alcohol' in out and 'class_0' in out and 'coreset.csv' in out and 'outside' not in out
    code, out, err = bpc('predictive', found['coreset'], '--protocol', 'ensemble')
    assert code==0 and 'test rows of wine' in out
    assert 'wide (truth)' in bpc('data', 'wine.csv', '--label', 'species')[1]
    assert json.loads(bpc('list', '--json')[1])['spaces']==['images','vectors','sequences']
    refused('data', 'wine.csv', parts=('--label one of alcohol', 'is a table'))
    refused('data', 'wine.csv', '--label', 'specie', parts="did you mean 'species'?")
    refused('distill', 'wine.csv', '--label', 'species', '--net', 'convnet', parts='take mlp or logistic')
