// The module: conversion only, no logic. Each noun of the core binds itself in a file of its own.
#include <nanobind/nanobind.h>

namespace penstock::binding {
void bind_order(nanobind::module_& m);
void bind_shuffle(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_scan(nanobind::module_& m);
void bind_slab(nanobind::module_& m);
void bind_checksum(nanobind::module_& m);
void bind_walk_lmdb(nanobind::module_& m);
void bind_walkers(nanobind::module_& m);
void bind_collect(nanobind::module_& m);
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
  penstock::binding::bind_order(m);
  penstock::binding::bind_shuffle(m);
  penstock::binding::bind_engine(m);
  penstock::binding::bind_scan(m);
  penstock::binding::bind_slab(m);
  penstock::binding::bind_checksum(m);
  penstock::binding::bind_walk_lmdb(m);
  penstock::binding::bind_walkers(m);
  penstock::binding::bind_collect(m);
}
