// The module `_core`. Each noun of the core binds itself in a file of its own.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

namespace penstock::binding {
void bind_order(nanobind::module_& m);
void bind_bitmap(nanobind::module_& m);
void bind_weight_table(nanobind::module_& m);
void bind_shuffle(nanobind::module_& m);
void bind_deal(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_scan(nanobind::module_& m);
void bind_jpeg(nanobind::module_& m);
void bind_slab(nanobind::module_& m);
void bind_checksum(nanobind::module_& m);
void bind_codecs(nanobind::module_& m);
void bind_walk_lmdb(nanobind::module_& m);
void bind_walkers(nanobind::module_& m);
void bind_extents(nanobind::module_& m);
void bind_gather(nanobind::module_& m);
void bind_json_fields(nanobind::module_& m);
void bind_moments(nanobind::module_& m);
void bind_packing(nanobind::module_& m);
void bind_images(nanobind::module_& m);
void bind_kernels(nanobind::module_& m);

namespace {

std::optional<std::string> get_sanitizers() {
#ifdef PENSTOCK_SANITIZED
  return PENSTOCK_SANITIZED;
#else
  return std::nullopt;
#endif
}

}  // namespace
}  // namespace penstock::binding

NB_MODULE(_core, m) {
  m.doc() = "The data path of penstock in C++: arrays in, arrays out.";
  // Loaders alive when the interpreter ends are normal use, not a leak.
  nanobind::set_leak_warnings(false);
  m.def("get_sanitizers", &penstock::binding::get_sanitizers,
        "Names of the sanitizers that the module was built with, or None.");
  penstock::binding::bind_order(m);
  penstock::binding::bind_bitmap(m);
  penstock::binding::bind_weight_table(m);
  penstock::binding::bind_shuffle(m);
  penstock::binding::bind_deal(m);
  penstock::binding::bind_engine(m);
  penstock::binding::bind_scan(m);
  penstock::binding::bind_jpeg(m);
  penstock::binding::bind_slab(m);
  penstock::binding::bind_checksum(m);
  penstock::binding::bind_codecs(m);
  penstock::binding::bind_walk_lmdb(m);
  penstock::binding::bind_walkers(m);
  penstock::binding::bind_extents(m);
  penstock::binding::bind_gather(m);
  penstock::binding::bind_json_fields(m);
  penstock::binding::bind_moments(m);
  penstock::binding::bind_packing(m);
  penstock::binding::bind_images(m);
  penstock::binding::bind_kernels(m);
}
