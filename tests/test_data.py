"""Images and data: what a reader meets on a real disk, above all what is wrong with it."""
import gzip, json, os, struct, subprocess, sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, tensor

from bpc_nb import images
from bpc_nb.core import Coreset
from bpc_nb.data import load, match, overview

gen = lambda seed=0: Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('BPC_CACHE', str(tmp_path/'.cache'))
    return tmp_path/'.cache'


def picture(seed, w=6, h=6, mode='RGB'):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)).convert(mode)


def encoded(im, kind='PNG'):
    im.save(b := BytesIO(), kind)
    return b.getvalue()


def folder(d, seed=0, w=6, h=6, mode='RGB', **classes):
    for c, n in classes.items():
        (d/c).mkdir(parents=True)
        for i in range(n): picture((seed, i), w, h, mode).save(d/c/f'{i}.png')
    return d


def parquet(f, blobs, labels, img='img', label='label', names=None, **more):
    import pyarrow as pa, pyarrow.parquet as pq
    t = pa.table({img: [dict(bytes=b, path=None) for b in blobs], label: labels, **more})
    info = dict(info=dict(features={label: dict(names=names)} if names else {}))
    f.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(t.replace_schema_metadata(dict(huggingface=json.dumps(info))), f)
    return f


def idx(a, zipped=True):
    a = np.asarray(a, dtype=np.uint8)
    raw = struct.pack(f'>I{a.ndim}I', 0x800+a.ndim, *a.shape)+a.tobytes()
    return gzip.compress(raw) if zipped else raw


def mnist_files(d, zipped=True, dot='-'):
    d.mkdir(parents=True, exist_ok=True)
    rng, end = np.random.default_rng(0), '.gz' if zipped else ''
    for part, n in ('train', 30), ('t10k', 10):
        (d/f'{part}-images{dot}idx3-ubyte{end}').write_bytes(idx(rng.integers(0, 256, (n, 28, 28)), zipped))
        (d/f'{part}-labels{dot}idx1-ubyte{end}').write_bytes(idx(np.arange(n)%10, zipped))
    return d


def sentence(e, *parts):
    "One line, one sentence, with these words in it"
    said = str(e.value)
    assert '\n' not in said and len(said) < 500
    for p in parts: assert p in said, said


# --- what is not there, or not right ---------------------------------------------------------------------------------

def test_missing_path(tmp_path):
    for s in tmp_path/'nowhere', str(tmp_path/'nowhere'), 'photos.npz':
        with pytest.raises(FileNotFoundError) as e: load(s)
        sentence(e, 'source: there is no file or folder')


def test_unknown_name_has_nearest_match():
    with pytest.raises(ValueError) as e: load('cifar-10')
    sentence(e, "did you mean 'cifar10'?")
    with pytest.raises(ValueError) as e: load('zzz')
    sentence(e, 'digits', 'tinyimagenet')


def test_an_existing_path_wins_over_a_name(tmp_path, monkeypatch):
    folder(tmp_path/'digits', a=5, b=5)
    monkeypatch.chdir(tmp_path)
    d = load('digits')
    assert (d.classes, d.shape) == (('a','b'), (3,6,6))


def test_folder_without_class_folders(tmp_path):
    picture(0).save(tmp_path/'1.png')
    with pytest.raises(ValueError) as e: load(tmp_path)
    sentence(e, 'no class folders in', str(tmp_path), 'CLASS/IMAGE')


@pytest.mark.parametrize('junk', [None, 'Thumbs.db'])
def test_empty_class_folder(tmp_path, junk):
    folder(tmp_path, cat=3); (tmp_path/'dog').mkdir()
    if junk: (tmp_path/'dog'/junk).write_bytes(b'0')
    with pytest.raises(ValueError) as e: load(tmp_path)
    sentence(e, 'dog holds no images')


@pytest.mark.parametrize('broken', [b'', b'not an image', encoded(picture(0, 64, 64), 'JPEG')[:700], encoded(picture(0, 64, 64))[:900]], ids=['empty','text','cut jpeg','cut png'])
def test_corrupt_image_is_named_and_skipped_only_on_request(tmp_path, broken):
    folder(tmp_path/'p', w=64, h=64, cat=4, dog=4); (tmp_path/'p'/'dog'/'rex.jpg').write_bytes(broken)
    for _ in range(2): # also when the same folder was read with skip_bad before
        with pytest.raises(ValueError) as e: load(tmp_path/'p')
        sentence(e, 'cannot decode image dog/rex.jpg', 'skip_bad=True')
        d = load(tmp_path/'p', skip_bad=True, held_out=0)
    assert d.meta['skipped'] == ['dog/rex.jpg'] and len(d.train.y)+len(d.test.y) == 8


def test_class_with_nothing_but_corrupt_images(tmp_path):
    folder(tmp_path, cat=4, dog=4)
    for f in (tmp_path/'dog').iterdir(): f.write_bytes(b'x')
    with pytest.raises(ValueError) as e: load(tmp_path)
    sentence(e, 'cannot decode images dog/0.png, dog/1.png, dog/2.png, dog/3.png; repair')
    with pytest.raises(ValueError) as e: load(tmp_path, skip_bad=True)
    sentence(e, "class 'dog' has no image that can be decoded")


def test_mixed_sizes_ask_for_size(tmp_path):
    folder(tmp_path, cat=4); folder(tmp_path, w=9, h=7, dog=4)
    with pytest.raises(ValueError) as e: load(tmp_path)
    sentence(e, 'size: images differ in size, 6x6 (cat/0.png) and 7x9 (dog/0.png)', 'size=6')
    assert load(tmp_path, size=8).shape == (3,8,8)
    assert load(tmp_path, size=(4,10)).shape == (3,4,10)


@pytest.mark.parametrize('size', [0, -1, 2.5, '32', (8,), (8,8,8), (0,8), True, (8,'8')])
def test_bad_size(size):
    with pytest.raises(ValueError) as e: load(size=size)
    sentence(e, 'size: expected a positive whole number or a pair', repr(size))


@pytest.mark.parametrize('held_out', [-.1, 1, 1.5, float('nan'), '0.1', None, True])
def test_bad_held_out(held_out):
    with pytest.raises(ValueError) as e: load(held_out=held_out)
    sentence(e, 'held_out: expected a fraction', repr(held_out))


@pytest.mark.parametrize('kw', [dict(folds=0), dict(folds=2.5), dict(fold=5), dict(fold=-1), dict(fold='a'), dict(seed=.5), dict(seed='a')])
def test_bad_folds_and_seed(kw):
    with pytest.raises(ValueError) as e: load(**kw)
    sentence(e, f'{next(iter(kw))}: expected a whole number', repr(next(iter(kw.values()))))


def test_more_folds_than_examples():
    with pytest.raises(ValueError) as e: load(folds=10_000)
    sentence(e, 'source: 1797 examples in all, too few for folds=10000')


def test_fold_of_a_set_with_a_test_part(tmp_path):
    folder(tmp_path/'train', a=3, b=3); folder(tmp_path/'test', a=1, b=1)
    with pytest.raises(ValueError) as e: load(tmp_path, fold=0)
    sentence(e, 'fold: this data set has a test part of its own')


def test_class_with_one_image(tmp_path):
    with pytest.raises(ValueError) as e: load(folder(tmp_path, cat=4, dog=1))
    sentence(e, "class 'dog' has one example")


def test_test_class_without_training_images(tmp_path):
    folder(tmp_path/'train', a=3, b=3); folder(tmp_path/'test', a=1, c=1)
    with pytest.raises(ValueError) as e: load(tmp_path)
    sentence(e, "class 'c' of the test part has no training images")


@pytest.mark.parametrize('ipc', [0, -3, 1.5, '1', None, True, float('nan')])
def test_bad_ipc(ipc):
    with pytest.raises(ValueError) as e: load().draw(ipc, gen())
    sentence(e, 'ipc: expected a whole number', repr(ipc))


def test_ipc_above_the_smallest_class(tmp_path):
    d = load(folder(tmp_path, cat=20, dog=5), held_out=0)
    with pytest.raises(ValueError) as e: d.draw(5, gen())
    sentence(e, "class 'dog' has 4 training images", 'ipc=4')
    assert d.draw(4, gen()).y.tolist() == [0]*4+[1]*4


@pytest.mark.parametrize('x, said', [
    (torch.full((6,1,4,4), float('nan')), '6 of 6 images hold NaN'), (torch.full((6,4,4), float('inf')), 'hold NaN or infinite'),
    (torch.linspace(-2, 2, 96).view(6,4,4), 'expected 8-bit pixels or floats in [0, 1], found -2 to 2'), (torch.arange(96.).view(6,4,4), 'found 0 to 95'),
    (torch.arange(96).view(6,4,4)-5, 'found -5 to 90'), (torch.zeros(6,16), 'found shape (6, 16)'), (torch.zeros(6,5,4,4), 'found shape'), (torch.zeros(0,4,4), 'shape (0, 1, 4, 4)')])
def test_bad_pixels(x, said):
    with pytest.raises(ValueError) as e: load((x, [0,1]*(len(x)//2)))
    sentence(e, 'x: expected' if 'NaN' not in said else 'x: ', said)


@pytest.mark.parametrize('y, said', [([0,1,0], 'found 6 images and 3 labels'), (torch.eye(6), 'one label per image, found shape (6, 6)'), ([0.,1,.5,0,1,1], 'found 0.5'),
                                     ([0.,1,float('nan'),0,1,1], 'found nan'), ([0.,1,float('inf'),0,1,1], 'found inf')])
def test_bad_labels(y, said):
    with pytest.raises(ValueError) as e: load((torch.zeros(6,4,4), y))
    sentence(e, 'y: expected', said)


class Sneaky:
    def __reduce__(self): return os.mkdir, ('opened',)


@pytest.mark.parametrize('name', ['a.pt', 'a.pth', 'a.pkl', 'a.pickle', 'a.npz'])
def test_pickles_are_refused_and_not_run(tmp_path, monkeypatch, name):
    import pickle
    monkeypatch.chdir(tmp_path)
    if name.endswith('npz'): np.savez(name, x=np.array([Sneaky()], dtype=object), y=[0])
    elif name.endswith('pt'): torch.save(dict(x=Sneaky(), y=0), name)
    else: Path(name).write_bytes(pickle.dumps(Sneaky()))
    with pytest.raises(ValueError) as e: load(tmp_path/name)
    sentence(e, name, 'may run code', 'np.savez')
    assert not Path('opened').exists()


def test_other_files(tmp_path):
    (tmp_path/'a.txt').write_text('1,2')
    with pytest.raises(ValueError) as e: load(tmp_path/'a.txt')
    sentence(e, 'neither a folder nor an .npz, .parquet or .pt file')
    (tmp_path/'a.parquet').write_text('1,2')
    with pytest.raises(ValueError) as e: load(tmp_path/'a.parquet')
    sentence(e, 'not a readable parquet file')
    with pytest.raises(ValueError) as e: load(parquet(tmp_path/'b.parquet', [b''], [0], img='photo'))
    sentence(e, 'expected columns img or image', 'found photo, label')
    torch.save(tensor([1]), tmp_path/'a.pt')
    with pytest.raises(ValueError) as e: load(tmp_path/'a.pt')
    sentence(e, 'expected arrays x and y')


def test_zca_of_large_images():
    x = torch.zeros(4,3,96,96, dtype=torch.uint8)
    with pytest.raises(ValueError) as e: load((x, [0,0,1,1]), zca=True, folds=2)
    sentence(e, 'zca: images of 3x96x96', '18.3 GB', 'limit of 3.6 GB', 'at most 64')


def test_objects_that_are_no_dataset():
    for s in 3, None, iter([]), []:
        with pytest.raises(ValueError) as e: load(s)
        sentence(e, 'source: expected a dataset with a length and an index')


# --- what is right in many ways ----------------------------------------------------------------------------------------

def test_grey_and_colour_files(tmp_path):
    assert load(folder(tmp_path/'grey', mode='L', a=4, b=4)).shape == (1,6,6)
    folder(tmp_path/'both', mode='L', a=4); folder(tmp_path/'both', mode='RGBA', b=4); folder(tmp_path/'both', mode='P', c=4)
    assert load(tmp_path/'both').shape == (3,6,6)
    deep = Image.fromarray(np.full((4,4), 0x8000, dtype=np.uint16))
    assert images.decode([encoded(deep), encoded(picture(0, mode='1')), encoded(picture(0, mode='LA'))], 'abc')[0].unique().tolist() == [0x80]


def test_cover_agrees_with_torchvision(tmp_path):
    from torchvision.transforms import CenterCrop, Compose, Resize
    im = picture(0, 50, 31)
    assert images.pixels(im, (16,16)).equal(images.pixels(Compose([Resize(16), CenterCrop(16)])(im)))


def test_unbalanced_strings_and_offset_labels():
    x = torch.rand(40,8,6, generator=gen())
    d = load((x, ['owl']*30+['ant']*10))
    assert (d.classes, d.shape, d.counts, d.held.y.bincount().tolist(), d.test.y.bincount().tolist()) == (('ant','owl'), (1,8,6), (7,22), [1,2], [2,6])
    assert load((x, np.r_[[5]*20, [-3]*20])).classes == ('-3','5')
    assert load((x, np.r_[[5.]*20, [7]*20][:,None])).classes == ('5','7')


def test_black_and_white():
    x = torch.rand(40,1,8,6, generator=gen()) > .5
    y = [0,1]*20
    want = load((x.float(), y))
    for t in x, x.byte(), x.int(), x.numpy().astype('int64'), [*zip(x.byte(), y)]:
        d = load(t if isinstance(t, list) else (t, y))
        assert d.meta['checksum'] == want.meta['checksum'] and d.meta['range'] == [0,1] and d.train.x.equal(want.train.x)
        assert d.draw(1, gen()).quantised().pixels().round(decimals=3).unique().tolist() == [0,1]
    assert load((x.byte()*2, y)).meta['range'] == [0,.0078] # 2 is a dark grey: eight bits


def test_arrays_in_files(tmp_path):
    x, y = torch.randint(256, (30,3,5,4), dtype=torch.uint8, generator=gen()), torch.arange(30)%3
    np.savez(tmp_path/'a.npz', x=x.permute(0,2,3,1), y=y); torch.save((x,y), tmp_path/'b.pt'); torch.save(dict(x=x, y=y), tmp_path/'c.pt')
    sums = [load(s).meta['checksum'] for s in ((x,y), dict(x=x, y=y), tmp_path/'a.npz', tmp_path/'b.pt', tmp_path/'c.pt')]
    assert len({*sums}) == 1
    np.savez(tmp_path/'d.npz', x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    d = load(tmp_path/'d.npz', held_out=0)
    assert (d.name, len(d.train.y), len(d.held.y), len(d.test.y)) == ('d', 20, 0, 10)
    assert torch.allclose(d.transform.inverse(d.test.x)*255, x[20:].float(), atol=1e-3)


def test_datasets():
    class Pictures:
        classes = ['no','yes']
        def __len__(self): return 20
        def __getitem__(self, i): return picture(i, 6, 6+i%2), i%2
    with pytest.raises(ValueError) as e: load(Pictures())
    sentence(e, 'size: images differ', 'item 1')
    d = load((Pictures(), Pictures()), size=6)
    assert (d.name, d.classes, d.shape, len(d.test.y)) == ('arrays', ('no','yes'), (3,6,6), 20)
    rows = [dict(image=picture(i), label=i%2) for i in range(20)]
    assert load(rows).classes == ('0','1')
    with pytest.raises(ValueError) as e: load(([(torch.rand(1,4,4), 0)]*4, [(torch.rand(1,5,5), 0)]*4))
    sentence(e, 'training and test images differ, (1, 4, 4)')
    with pytest.raises(ValueError) as e: load([(torch.randn(1,4,4, generator=gen()), 0)]*4)
    sentence(e, 'source: item 0: expected 8-bit')


def test_parquet_forms(tmp_path):
    blobs, labels = [encoded(picture(i)) for i in range(20)], [i%2 for i in range(20)]
    one = load(parquet(tmp_path/'one.parquet', blobs, labels, img='image', label='fine_label', coarse_label=[0]*20, names=['cat','dog']))
    assert (one.classes, one.shape, len(one.test.y), one.name) == (('cat','dog'), (3,6,6), 4, 'one')
    parquet(tmp_path/'hub'/'data'/'train-00000-of-00002.parquet', blobs[:8], labels[:8]); parquet(tmp_path/'hub'/'data'/'train-00001-of-00002.parquet', blobs[8:16], labels[8:16])
    parquet(tmp_path/'hub'/'data'/'validation-00000-of-00001.parquet', blobs[16:], labels[16:])
    two = load(tmp_path/'hub')
    assert (len(two.train.y)+len(two.held.y), len(two.test.y)) == (16, 4) and two.meta['checksum'] == one.meta['checksum']
    with pytest.raises(ValueError) as e: load(parquet(tmp_path/'bad.parquet', blobs[:-1]+[b'?'], labels))
    sentence(e, 'cannot decode image bad.parquet row 19')
    assert load(tmp_path/'bad.parquet', skip_bad=True).meta['skipped'] == ['bad.parquet row 19']


# --- sets with a name ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('name', images.NAMED)
def test_named_set_that_is_not_there(tmp_path, monkeypatch, name):
    monkeypatch.setenv('BPC_DATA', str(tmp_path)); monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as e: load(name)
    sentence(e, f'no files of {name!r} found', str(tmp_path), 'BPC_DATA')
    assert ('download=True' in str(e.value)) == (name != 'tinyimagenet')


def test_download_happens_only_on_request(tmp_path, monkeypatch):
    def offline(cls, d, test, **kw):
        assert kw['download']
        raise OSError('no route to host')
    monkeypatch.setattr(images, 'torchvision_part', offline)
    with pytest.raises(FileNotFoundError) as e: load('cifar100', root=tmp_path)
    sentence(e, 'no files of')
    with pytest.raises(FileNotFoundError) as e: load('cifar100', root=tmp_path, download=True)
    sentence(e, 'download: cifar100 could not be fetched', 'no route to host')
    with pytest.raises(ValueError) as e: load('tinyimagenet', root=tmp_path, download=True)
    sentence(e, 'download: tinyimagenet cannot be fetched automatically')


@pytest.mark.parametrize('make', [lambda r: mnist_files(r/'mnist'), lambda r: mnist_files(r/'mnist', dot='.'), lambda r: mnist_files(r), lambda r: mnist_files(r, zipped=False),
                                  lambda r: mnist_files(r/'MNIST'/'raw', zipped=False), lambda r: mnist_files(r/'mnist'/'MNIST'/'raw', zipped=False)])
def test_mnist_layouts(tmp_path, make):
    make(tmp_path)
    d = load('mnist', root=tmp_path, held_out=0)
    assert (d.name, d.shape, d.classes, d.counts, len(d.test.y)) == ('mnist', (1,28,28), tuple('0123456789'), (3,)*10, 10)


def test_bare_files_are_nobodys(tmp_path, monkeypatch):
    mnist_files(tmp_path); monkeypatch.setenv('BPC_DATA', str(tmp_path)); monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError): load('fashionmnist')
    mnist_files(tmp_path/'fashionmnist')
    assert load('fashionmnist').classes[0] == 'T-shirt/top'


def test_damaged_idx(tmp_path):
    f = mnist_files(tmp_path/'mnist')/'train-images-idx3-ubyte.gz'
    whole = f.read_bytes()
    f.write_bytes(whole[:-500])
    with pytest.raises(ValueError) as e: load('mnist', root=tmp_path)
    sentence(e, str(f), 'is damaged')
    f.write_bytes(gzip.compress(gzip.decompress(whole)[:-500]))
    with pytest.raises(ValueError) as e: load('mnist', root=tmp_path)
    sentence(e, f'the four files in {f.parent} of MNIST are incomplete or damaged')
    f.unlink()
    with pytest.raises(ValueError) as e: load('mnist', root=tmp_path)
    sentence(e, 'incomplete or damaged')


@pytest.mark.parametrize('name, coarse', [('cifar10', 'labels'), ('cifar100', 'fine_labels')])
def test_cifar_as_torchvision_leaves_it(tmp_path, monkeypatch, name, coarse):
    import pickle
    from torchvision import datasets
    d = tmp_path/images.NAMED[name][1]; d.mkdir()
    kind = getattr(datasets, images.NAMED[name][0]); K = int(name[5:])
    with pytest.raises(ValueError) as e: load(name, root=tmp_path)
    sentence(e, 'are incomplete or damaged')
    monkeypatch.setattr('torchvision.datasets.cifar.check_integrity', lambda *a: True)
    for f, _ in kind.train_list+kind.test_list: (d/f).write_bytes(pickle.dumps({'data': np.full((2*K,3072), 7, dtype=np.uint8), coarse: [*range(K)]*2}))
    (d/kind.meta['filename']).write_bytes(pickle.dumps({kind.meta['key']: [f'c{k}' for k in range(K)]}))
    data = load(name, root=tmp_path)
    assert (data.name, data.shape, data.K, data.classes[3]) == (name, (3,32,32), K, 'c3')


def test_svhn_as_torchvision_leaves_it(tmp_path, monkeypatch):
    from scipy.io import savemat
    monkeypatch.setattr('torchvision.datasets.svhn.check_integrity', lambda *a: True)
    x = np.arange(32*32*3*20, dtype=np.int64).reshape(32,32,3,20).astype(np.uint8)
    for part in 'train','test': savemat(tmp_path/f'{part}_32x32.mat', dict(X=x, y=np.arange(20)[:,None]%10+1))
    d = load('svhn', root=tmp_path, held_out=0)
    assert (d.shape, d.classes) == ((3,32,32), tuple('0123456789'))
    assert np.allclose(d.transform.inverse(d.test.x)[4].permute(1,2,0)*255, x[...,4], atol=1e-3)


def test_parquet_of_a_named_set_says_jpeg(tmp_path):
    for kind, name in ('JPEG','cifar10 (JPEG)'), ('PNG','cifar10'):
        for part in 'train','test': parquet(tmp_path/kind/'cifar10'/'plain_text'/f'{part}-00000-of-00001.parquet', [encoded(picture(i), kind) for i in range(20)], [i%10 for i in range(20)])
        d = load('cifar10', root=tmp_path/kind)
        assert d.name == d.meta['name'] == name and d.meta['recipe']['source'] == 'cifar10'


def test_tinyimagenet_as_published(tmp_path):
    root = tmp_path/'tiny-imagenet-200'
    for c in 'n01443537','n01629819': folder(root/'train'/c, seed=1, images=4)
    folder(root/'val', images=4); folder(root/'test', images=4)
    (root/'val'/'val_annotations.txt').write_text(''.join(f"{i}.png\t{('n01629819','n01443537')[i%2]}\t0\t0\t5\t5\n" for i in range(4)))
    (root/'words.txt').write_text('n01443537\tgoldfish, Carassius auratus\nn01629819\tEuropean fire salamander\n')
    for s, r in ('tinyimagenet', tmp_path), (root, None):
        d = load(s, root=r)
        assert (d.classes, d.test.y.tolist(), d.shape) == (('goldfish','European fire salamander'), [1,0,1,0], (3,6,6))


def test_imagenette_as_published(tmp_path):
    for part in 'train','val': folder(tmp_path/'imagenette2-320'/part, n01440764=3, n02102040=3)
    assert load('imagenette', root=tmp_path).classes == ('tench','English springer')


# --- the cache ----------------------------------------------------------------------------------------------------------

def test_cache_is_used_and_follows_the_bytes(tmp_path, cache, monkeypatch):
    d = folder(tmp_path/'p', a=4, b=4)
    first = load(d)
    with monkeypatch.context() as m:
        m.setattr(images, 'decode', lambda *a, **k: pytest.fail('decoded again'))
        assert load(d).meta['checksum'] == first.meta['checksum']
    picture(99).save(d/'a'/'0.png')
    assert load(d).meta['checksum'] != first.meta['checksum']
    assert load(d, size=4).shape == (3,4,4)
    for f in cache.iterdir(): f.write_bytes(b'garbage')
    assert load(d, size=4).shape == (3,4,4)
    (d/'a').rename(d/'z')
    assert load(d).classes == ('b','z')


def test_unwritable_cache_only_skips_caching(tmp_path, monkeypatch):
    (tmp_path/'file').write_text('')
    monkeypatch.setenv('BPC_CACHE', str(tmp_path/'file'))
    assert len(load(folder(tmp_path/'p', a=4, b=4)).classes) == 2
    monkeypatch.setenv('BPC_CACHE', '/proc/nothing')
    assert load().K == 10


# --- splits, statistics, coresets ----------------------------------------------------------------------------------------

def test_digits_folds_partition():
    seen = [load(fold=k, held_out=0) for k in range(5)]
    assert sum(len(d.test.y) for d in seen) == 1797
    assert sum(d.test.y.bincount() for d in seen).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    key = lambda s, d: {tuple(p) for p in (d.transform.inverse(s.x).flatten(1)*16).round().int().tolist()}
    assert len(set().union(*(key(d.test, d) for d in seen))) == len(key(seen[0].test, seen[0]) | key(seen[0].train, seen[0])) # no two digits are equal
    assert load(seed=1).meta['checksum'] == seen[0].meta['checksum']
    assert not load(seed=1).test.y.equal(load(seed=0).test.y)


def test_statistics_are_of_the_training_part_alone():
    x = torch.rand(40,1,4,4, generator=gen())*.5
    d = load(dict(x_train=x, y_train=[0,1]*20, x_test=torch.ones(4,1,4,4), y_test=[0,1]*2), held_out=.5)
    assert abs(d.train.x.mean()) < 1e-5 and abs(d.train.x.std(correction=0)-1) < 1e-4 and d.held.x.mean().abs() > 1e-3
    flat = load((torch.ones(10,3,4,4), [0,1]*5))
    assert flat.train.x.abs().max() == 0 and flat.transform.inverse(flat.test.x).eq(1).all() # a constant channel is not divided by zero


def test_zca_inverse_of_32x32_colour():
    x = torch.nn.functional.interpolate(torch.rand(300,3,8,8, generator=gen()), scale_factor=2, mode='bilinear')
    d = load((x, [0,1]*150), zca=True, held_out=0)
    assert (d.transform.inverse(d.test.x) - load((x, [0,1]*150), held_out=0).transform.inverse(load((x, [0,1]*150), held_out=0).test.x)).abs().max() < 1e-4
    assert d.transform.white.dtype == torch.float32 and torch.allclose(d.transform.white@d.transform.colour, torch.eye(768), atol=1e-3)


def test_recipe_is_json_and_loads_the_same():
    d = load(zca=True, size=(6,10), seed=3, fold=2, held_out=.2)
    again = load(**json.loads(json.dumps(d.meta['recipe'])))
    assert again.train.x.equal(d.train.x) and again.test.y.equal(d.test.y) and again.meta == d.meta


def test_match_and_summary(tmp_path):
    data, white = load(), load(zca=True)
    white.draw(1, gen()).save(tmp_path/'s.safetensors')
    s = Coreset.load(tmp_path/'s.safetensors')
    assert match(white, s) is white
    assert torch.allclose(match(data, s).held.x, white.held.x, atol=1e-3)
    for other in s._replace(x=s.x[...,:4]), s._replace(classes=('a',)), s._replace(classes=(), y=torch.arange(10)+5), s._replace(classes=(), y=torch.eye(10)[:,:9]):
        with pytest.raises(ValueError) as e: match(data, other)
        sentence(e, 'coreset: its ')
    soft = s._replace(classes=(), y=torch.eye(10))
    assert match(white, soft) is white
    out = overview(white)
    assert json.loads(json.dumps(out)) == out
    assert out['zca'] and out['images'] == dict(train=1294, held=143, test=360) and out['range'] == [0,1] and len(out['checksum']) == 64


# --- the real ones --------------------------------------------------------------------------------------------------------

def test_mnist(data_root, kept):
    d = load('mnist', held_out=0)
    assert (d.shape, len(d.train.y), len(d.test.y)) == ((1,28,28), 60_000, 10_000)
    assert overview(d)['mean'] == [.1307] and overview(d)['std'] == [.3081]
    assert d.counts == (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


@pytest.mark.slow # 60,000 JPEGs
def test_cifar10(data_root, kept):
    d = load('cifar10', held_out=.1)
    if d.name == 'cifar10 (JPEG)': assert np.allclose(d.transform.mean.flatten(), (.4913,.4821,.4465), atol=5e-4) and np.allclose(d.transform.std.flatten(), (.2452,.2428,.2606), atol=5e-4)
    assert (d.shape, d.counts, len(d.held.y), len(d.test.y)) == ((3,32,32), (4500,)*10, 5000, 10_000)
    assert d.classes[0] == 'airplane' and d.classes[9] == 'truck'


def test_mnist_needs_little_more_memory_than_it_is(data_root, kept):
    code = """
import resource
from bpc_nb.data import load
load('digits'); peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak(); d = load('mnist'); print((peak()-before)*1024/sum(s.x.numel()*4 for s in (d.train, d.held, d.test)))"""
    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=os.environ | dict(PYTHONPATH=str(Path(__file__).parents[1])))
    assert float(out.stdout) < 3, out.stdout+out.stderr


@pytest.mark.parametrize('mode', ('RGBA', 'LA', 'P', 'L'))
def test_what_is_transparent_lies_on_white_paper(tmp_path, mode):
    for c in 'ab':
        (tmp_path/'logos'/c).mkdir(parents=True)
        for i in range(3):
            im = Image.new('RGBA', (8, 8), (0, 0, 0, 0))
            im.paste((0, 0, 190+i, 255), (2, 2, 6, 6))
            if mode in ('RGBA', 'LA'): im.convert(mode).save(tmp_path/'logos'/c/f'{i}.png')
            else: im.convert("RGB").convert(mode).save(tmp_path/'logos'/c/f'{i}.png', transparency=Image.new('RGB', (1, 1)).convert(mode).getpixel((0, 0)))
    d = load(tmp_path/'logos', held_out=0)
    pixels = d.transform.inverse(d.train.x)
    assert d.shape[0] == (1 if mode in ('LA', 'L') else 3)
    assert pixels[..., 0, 0].min() > .99 and pixels[..., 4, 4].amin(1).max() < .1


def test_photographs_of_a_telephone(tmp_path):
    folder(tmp_path/'trip', w=1500, h=1000, a=3, b=3)
    with pytest.raises(ValueError, match=r'size: the first image has 1000x1500 pixels, too many to learn; pass size='): load(tmp_path/'trip')
    assert load(tmp_path/'trip', size=8).shape == (3, 8, 8)
    (tmp_path/'trip'/'a'/'z.HEIC').write_bytes(b'\0\0\0\x24ftypheic')
    with pytest.raises(ValueError, match=r'cannot decode image a/z.HEIC; repair, convert or remove, or pass skip_bad=True'): load(tmp_path/'trip', size=8)
    assert load(tmp_path/'trip', size=8, skip_bad=True).meta['skipped'] == ['a/z.HEIC']
