# make demo | make test | make test-all | make export | make docs | make readme | make package | make clean
VENV ?= .venv
BIN  := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE   # compiling torch anew takes each start of Python seconds

.PHONY: demo test test-all notebooks tests export docs readme package clean
demo: $(VENV)/.stamp          ## install what is missing, run the main job
	$(BIN)/bpc demo

test: notebooks tests           ## every notebook is a test; tests/ holds what they cannot say about themselves
test-all: notebooks             ## and the slow ones
	$(PYTEST) tests

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist loadfile # a process on each core, a file to one of them
tests: $(VENV)/.stamp
	$(PYTEST) -m 'not slow' tests

notebooks: $(VENV)/.stamp     ## each of them runs, and gives what it is saved with
	$(BIN)/python .ci/notebooks

$(VENV)/.stamp: settings.ini setup.py
	test -x $(BIN)/python || python3 -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install -q uv || true
	$(BIN)/uv pip install -q --python $(BIN)/python -e '.[dev]' || $(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

export: $(VENV)/.stamp        ## notebooks -> bpc_nb/ and the sidebar, and clean them
	$(BIN)/nbdev_clean && env -u IN_TEST $(BIN)/nbdev_export && $(BIN)/python docs/build.py --sidebar

docs: $(VENV)/.stamp          ## the site in docs/_html, from the outputs that the notebooks have; RUN=1 runs them first
	$(BIN)/python docs/build.py $(if $(RUN),--run)

readme: $(VENV)/.stamp nbs/index.ipynb   ## README.md from nbs/index.ipynb
	rm -rf README_files && $(BIN)/python .ci/readme

package: $(VENV)/.stamp       ## wheel and source archive in dist/
	rm -rf dist && $(BIN)/python -m build -q --no-isolation

clean:
	rm -rf docs/pages docs/_extra docs/_html docs/_doctrees build dist *.egg-info .pytest_cache .ruff_cache
