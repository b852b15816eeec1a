# A thin front for Meson: everything about how Leasehold is built stands in meson.build.

BUILD  ?= build
PREFIX ?= /usr/local

.DEFAULT_GOAL := all
.PHONY: all deps demo check test bench torture mutants format install uninstall clean help

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD) --quiet

# Asked on every build: it costs some hundredths of a second, and a package that a later commit
# came to need is then installed instead of failing in the middle of a configure.
$(BUILD)/build.ninja: .FORCE
	@tools/deps build
	@test -f $@ || meson setup $(BUILD) --prefix $(PREFIX)
	@tools/prefix $(BUILD) $(PREFIX)
.PHONY: .FORCE
.FORCE:

deps:
	@tools/deps check

demo: all
	@BUILD=$(BUILD) tools/demo

check:
	@tools/check

# T names the tests. An error of make (exit code 2) also when nothing matches.
test:
	@tools/test $(if $(ON),--on $(ON)) $(if $(TIMES),--times $(TIMES)) $(if $(BUSY),--busy $(BUSY)) $(T)

bench: all
	@BUILD=$(BUILD) tools/bench

torture: all
	@BUILD=$(BUILD) tools/torture

mutants:
	@tools/mutants

format:
	@git ls-files -co --exclude-standard -- '*.c' '*.h' | xargs clang-format -i

# DESTDIR is read by Meson. The cache of the linker is that of this machine: with DESTDIR it is left alone,
# and so it is by users who may not write it.
install: all
	@meson install -C $(BUILD) --strip
	@test -n "$(DESTDIR)" || test ! -w /etc/ld.so.cache || ldconfig

uninstall:
	@tools/prefix $(BUILD) $(PREFIX)
	@tools/uninstall $(BUILD) "$(DESTDIR)"
	@test -n "$(DESTDIR)" || test ! -w /etc/ld.so.cache || ldconfig

clean:
	rm -rf $(BUILD)

help:
	@echo 'make            build $(BUILD)/leasehold and $(BUILD)/libleasehold.*'
	@echo 'make demo       see a lost job come back'
	@echo 'make check      everything that must pass: suites, sanitizers, lints (tools/check --help)'
	@echo "make test T='late_complete*' [ON=postgres]   the tests of these names (tools/test --help)"
	@echo 'make bench      measure, and compare with the floors'
	@echo 'make torture    the long crash and race runs'
	@echo 'make mutants    break each requirement once, and see its tests fail'
	@echo 'make format     lay out the C files as .clang-format says'
	@echo 'make install    into PREFIX ($(PREFIX)), below DESTDIR if that is set'
	@echo 'make uninstall  remove what make install has put there, with the same PREFIX and DESTDIR'
	@echo 'make deps       install the Debian packages that are missing (tools/deps)'
	@echo 'make clean      remove $(BUILD)'
