# The commands of this project. `make` alone lists them; a line that starts with "##" describes the target below it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help demo test verify fix wheel torch bench sim soak docs

# tools/setup builds into .tools; the user's cargo comes last because a shell that CI started may not know it.
export PATH := $(CURDIR)/.tools/bin:$(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# make sim: which world, and which seed of it.
SCENARIO ?= mixed
SEED ?= 1
# make soak: how many seeds of each scenario.
SEEDS ?= 5000

SIM := cargo run --locked --release --quiet -p outlast-sim --bin outlast-sim

## list these targets
help:
	@printf 'Outlast: collectives that outlast the machines that run them.\n\n'
	@awk '/^## / { text = substr($$0, 4); next } \
	      /^[a-z]+:/ && text != "" { split($$0, part, ":"); printf "  make %-8s %s\n", part[1], text } { text = "" }' Makefile
	@printf '\nStart with make demo. CONTRIBUTING.md says how to work on it.\n'

## training on this machine that survives a kill, a stop, a newcomer and a lost coordinator (half a minute after the build)
demo:
	@cargo run --locked --quiet --release -p outlast-cli --example train

## set-up, verify and every test: exactly what CI runs (it installs torch, five gigabytes, once; TORCH=0 leaves that out)
test:
	@tools/test

## format, lints, documentation, licences, links; writes nothing
verify:
	@tools/setup
	@tools/verify
	@tools/supply-chain

## format the code and apply what clippy can mend by itself
fix:
	cargo fmt --all
	cargo clippy --workspace --all-targets --all-features --fix --allow-dirty --allow-staged

## build the pages and the Python reference as a site, in target/site
docs:
	@tools/docs

## build the Python wheel that is shipped (manylinux_2_28), check and test it; it is in target/python/wheels
wheel:
	@tools/python-tests --release

## the Python tests that need torch, in an environment that has it and is kept
torch:
	@tools/python-tests --torch -m torch

## measure, and write the tables to bench/RESULTS.md
bench:
	@mkdir -p bench
	bench/all_reduce
	$(SIM) --features baseline -- table --out bench/RESULTS.md

## replay one simulated world: make sim SEED=17 SCENARIO=mixed
sim:
	$(SIM) -- replay --scenario $(SCENARIO) --seed $(SEED)

## the long tests, thousands of seeds (SEEDS=5000) of every scenario, millions of explored states
soak:
	@tools/soak $(SEEDS)
