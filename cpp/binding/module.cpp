// The module: conversion only, no logic. Each noun of the core binds itself in a file of its own.
#include <nanobind/nanobind.h>

namespace penstock::binding {
void order(nanobind::module_& m);
void shuffle(nanobind::module_& m);
void engine(nanobind::module_& m);
void scan(nanobind::module_& m);
void slab(nanobind::module_& m);
void checksum(nanobind::module_& m);
void walk_lmdb(nanobind::module_& m);
void walk(nanobind::module_& m);
void sim(nanobind::module_& m);
void replay(nanobind::module_& m);
void collect(nanobind::module_& m);
}  // namespace penstock::binding

NB_MODULE(_core, m) {
  m.doc() = "The compiled core of penstock: arrays in, arrays out.";
  // Loaders alive when the interpreter ends are normal use, not a leak.
  nanobind::set_leak_warnings(false);
#ifdef PENSTOCK_SANITIZED
  m.attr("sanitized") = PENSTOCK_SANITIZED;
#else
  m.attr("sanitized") = nanobind::none();
#endif
  penstock::binding::order(m);
  penstock::binding::shuffle(m);
  penstock::binding::engine(m);
  penstock::binding::scan(m);
  penstock::binding::slab(m);
  penstock::binding::checksum(m);
  penstock::binding::walk_lmdb(m);
  penstock::binding::walk(m);
  penstock::binding::sim(m);
  penstock::binding::replay(m);
  penstock::binding::collect(m);
}
