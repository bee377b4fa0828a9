"""Tables with a regression, from the command line: points, how near they are, predictions, draws, and what is refused."""
import json
from pathlib import Path

import numpy as np
import pytest

from bpc_nb.spaces import write_rows
from bpc_nb.study import load_points, study

SHORT = '--points', 20, '--steps', 60


@pytest.fixture(scope='module')
def claims(tmp_path_factory):
    g, n = np.random.default_rng(0), 600
    age, region, km = g.uniform(18, 80, n), g.choice(['north', 'south'], n), g.gamma(2, 8, n)
    y = g.poisson(np.exp(-.5 + .02*(45 - age) + .5*(region == 'south')))
    path = tmp_path_factory.mktemp('claims')/'claims.csv'
    write_rows(path, ['age', 'region', 'km', 'claims'], zip(age, region, km, y))
    return path


@pytest.fixture(scope='module')
def points(claims, tmp_path_factory):
    from bpc_nb.commands.regress import bpc_points
    out = tmp_path_factory.mktemp('points')/'points.safetensors'
    bpc_points(str(claims), 'claims', 'poisson', 20, steps=60, out=str(out))
    return out


def test_points_of_a_table(bpc, claims, tmp_path):
    code, out, err = bpc('distill', claims, '--model', 'poisson', '--label', 'claims', *SHORT, '--out', tmp_path/'a.safetensors', '--json')
    r = json.loads(out)
    assert code == 0 and err == '' and r['points'] == 20 and r['rows'] == 540 and r['method'] == 'cd'
    S, st, how = load_points(tmp_path/'a.safetensors')
    assert st.names == ('age', 'region=south', 'km') and how['method'] == 'cd' and (S.w > 0).all()
    assert Path(r['table']).read_text().splitlines()[0] == 'age,region=south,km,claims,weight'
    assert bpc('distill', claims, '--model=poisson', '--label', 'claims', *SHORT, '--out', tmp_path/'b.safetensors')[0] == 0
    assert (tmp_path/'a.safetensors').read_bytes() == (tmp_path/'b.safetensors').read_bytes()


def test_how_near(bpc, points):
    code, out, err = bpc('evaluate', points, '--evaluator', 'posterior', '--control', '--draws', 300, '--json')
    r = json.loads(out)
    assert code == 0 and {'kl_gauss', 'mean_error', 'cov_error', 'energy_distance'} <= {*r} and r['kl_gauss'] < r['kl_gauss_random']
    code, out, err = bpc('evaluate', points, '--draws', 300)
    assert code == 0 and 'kl_gauss' in out and '20 points' in out and 'all 540 rows' in out


def test_predictions_with_intervals(bpc, points, claims, tmp_path):
    code, out, err = bpc('predictive', points, '--out', tmp_path/'p.csv')
    assert code == 0 and '60 rows' in out and len((tmp_path/'p.csv').read_text().splitlines()) == 61
    r = json.loads(bpc('predictive', points, '--data', claims, '--json')[1])
    assert r['rows'] == 600 and .8 < r['coverage'] <= 1


def test_draws(bpc, points, claims, tmp_path):
    r = json.loads(bpc('posterior', points, '--draws', 300, '--out', tmp_path/'d.nc', '--json')[1])
    assert [p['parameter'] for p in r['parameters']] == ['age', 'region=south', 'km', 'intercept'] and r['rhat'] < 1.05
    import arviz
    d = arviz.from_netcdf(tmp_path/'d.nc').posterior
    assert d['age'].shape == (4, 300) and abs(float(d['age'].mean()) - r['parameters'][0]['mean']) < 1e-6
    whole = json.loads(bpc('posterior', claims, '--model', 'poisson', '--label', 'claims', '--draws', 300, '--json')[1])
    assert whole['rows'] == 600


def test_bad_input(refused, points, claims, tmp_path):
    refused('distill', claims, '--model', 'poisson', parts=('--label one of age, region, km, claims',))
    refused('distill', claims, '--model', 'posson', '--label', 'claims', parts=("'posson'", "'poisson'"))
    refused('distill', claims, '--model', 'logistic', '--label', 'claims', parts=('expects at most 2', "'multinomial'"))
    refused('distill', claims, '--model', 'poisson', '--label', 'age', parts=('age: row', 'whole number'))
    refused('distill', claims, '--model', 'poisson', '--label', 'claims', '--points', 10**6, parts=('points: found 1000000', 'expected 1 to 540'))
    refused('distill', claims, '--model', 'poisson', '--label', 'claims', '--method', 'dc', parts=("method: unknown 'dc'", 'psvi'))
    refused('distill', claims, '--model', 'poisson', '--label', 'claims', '--out', tmp_path/'x.csv', *SHORT, parts=('.safetensors',))
    refused('distill', 'wine', '--model', 'multinomial', '--label', 'x', parts=('label: wine has its own',))
    refused('posterior', claims, parts=('model: name what explains', 'poisson'))
    refused('posterior', points, '--model', 'poisson', parts=('holds points',))
    refused('evaluate', points, '--evaluator', 'students', parts=("'posterior'", "'students'"))
    refused('predictive', points, '--level', 2, parts=('level: found 2',))
    refused('evaluate', points, '--draws', 0, parts=('draws: expected a whole number of at least 4',))
    refused('evaluate', points, '--data', tmp_path/'none.csv', parts=('there is no file', 'none.csv'))
    for words in ('--rows', 0), ('--columns', 0):
        refused('posterior', 'simulated', '--model', 'linear', *words, parts=f'{words[0][2:]}: expected a whole number')
    write_rows(other := tmp_path/'other.csv', ['age', 'claims'], [(1., 2), (2., 1), (4., 0)])
    refused('evaluate', points, '--data', other, parts=("has no column 'region'",))
    refused('distill', claims, '--model', 'poisson', '--label', 'claims', '--steps', 0, parts=('steps: found 0',))
    refused('posterior', points, '--draws', 2, parts=('draws: found 2',))
    refused('posterior', points, '--prior', -1, parts=('prior: found -1',))


def test_a_table_that_was_there_stays(refused, claims):
    before = claims.read_bytes()
    refused('distill', claims, '--model', 'poisson', '--label', 'claims', *SHORT, '--out', claims.with_suffix('.safetensors'),
            parts=('does not belong to points',))
    assert claims.read_bytes() == before


def test_new_rows_are_read_as_the_points_were(bpc, refused, points, tmp_path):
    write_rows(few := tmp_path/'few.csv', ['km', 'claims', 'region', 'age'], [(3., 1, 'south', 30.), (8., 0, 'south', 60.)])
    r = json.loads(bpc('predictive', points, '--data', few, '--json')[1])
    assert r['rows'] == 2 and r['log_predictive'] > -5
    write_rows(east := tmp_path/'east.csv', ['km', 'claims', 'region', 'age'], [(3., 1, 'east', 30.)])
    refused('predictive', points, '--data', east, parts=("'east'", 'the points know north, south'))


def test_predictions_are_in_the_order_of_the_table(bpc, refused, points, tmp_path):
    rows = [(float(3 + k), k % 4, ('south', 'north')[k % 2], float(20 + k)) for k in range(25)]
    write_rows(new := tmp_path/'new.csv', ['km', 'claims', 'region', 'age'], rows)
    assert bpc('predictive', points, '--data', new, '--out', tmp_path/'said.csv')[0] == 0
    said = [l.split(',') for l in (tmp_path/'said.csv').read_text().splitlines()]
    assert said[0] == ['row', 'claims', 'predicted', 'low', 'high'] and [int(float(l[0])) for l in said[1:]] == list(range(1, 26))
    assert [float(l[1]) for l in said[1:]] == [r[1] for r in rows]
    assert all(float(l[4]) == int(float(l[4])) for l in said[1:])  # the end of an interval of counts is a count
    before = new.read_bytes()
    refused('predictive', points, '--data', new, '--out', new, parts=('is the table that is read',))
    assert new.read_bytes() == before
    refused('evaluate', new, parts=('is a table', '--model NAME'))


def test_which_class_is_meant(bpc, tmp_path):
    g = np.random.default_rng(1)
    x = g.normal(size=(300, 2))
    write_rows(t := tmp_path/'t.csv', ['a', 'b', 'bought'], [(u, v, ('no', 'yes')[int(u + g.normal() > 0)]) for u, v in x])
    assert bpc('distill', t, '--label', 'bought', '--model', 'logistic', *SHORT, '--out', tmp_path/'p.safetensors')[0] == 0
    assert 'bought: log odds of yes against no' in bpc('posterior', tmp_path/'p.safetensors', '--draws', 200)[1]
    assert 'P(yes)' in bpc('predictive', tmp_path/'p.safetensors')[1]


def test_rows_without_labels(bpc, points, tmp_path):
    write_rows(new := tmp_path/'new.csv', ['km', 'region', 'age'], [(3., 'south', 30.), (8., 'south', 60.)])
    r = json.loads(bpc('predictive', points, '--data', new, '--json')[1])
    assert r['rows'] == 2 and r['coverage'] is None and r['log_predictive'] is None
    code, out, err = bpc('predictive', points, '--data', new, '--out', tmp_path/'said.csv')
    assert code == 0 and '2 rows without labels' in out and len((tmp_path/'said.csv').read_text().splitlines()) == 3


def test_draws_of_what_is_no_file(refused, points, claims, tmp_path):
    (tmp_path/'fake.safetensors').write_text('no')
    refused('posterior', tmp_path/'none.safetensors', parts='there is no file')
    refused('posterior', tmp_path/'fake.safetensors', parts='holds no points of a regression')
    refused('posterior', points, '--out', tmp_path/'x', parts=('name a .nc file',))


def test_another_prior_for_the_same_points(bpc, points):
    sd = [json.loads(bpc('posterior', points, '--draws', 300, '--prior', p, '--json')[1])['parameters'][0]['sd'] for p in (.05, 5)]
    assert sd[0] < .9*sd[1]


@pytest.mark.parametrize('method', ['cd', 'psvi', 'giga'])
def test_a_class_whose_rows_are_all_put_aside_still_counts(bpc, tmp_path, method):
    rows = [(i/7, i % 5, 'pq'[i % 2]) for i in range(40)] + [(3, 1, 'z')]
    write_rows(tmp_path/'k.csv', ['a', 'b', 'k'], rows)
    for seed in range(30): # one that puts the row of z aside
        st = study(tmp_path/'k.csv', 'k', 'multinomial', seed=seed)
        if st.rows.y.max() < 2: break
    assert st.rows.y.max() < 2 and len(st.classes) == 3
    steps = ['--steps', 3]*(method != 'giga')
    assert bpc('distill', 'k.csv', '--model', 'multinomial', '--label', 'k', '--points', 8, *steps, '--seed', seed, '--method', method,
               '--out', 'p.safetensors')[0] == 0
    assert load_points(tmp_path/'p.safetensors')[1].source == str((tmp_path/'k.csv').resolve()) # found from any folder
