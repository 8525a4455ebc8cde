// The module `_sim`. Each noun of cpp/sim binds itself in a file of its own.
#include <nanobind/nanobind.h>

namespace penstock::binding {
void bind_kernels(nanobind::module_& m);
void bind_replay(nanobind::module_& m);
}  // namespace penstock::binding

NB_MODULE(_sim, m) {
  m.doc() = "The kernels of the simulators in C++, and the replay of traces.";
  nanobind::set_leak_warnings(false);  // a replay may be alive when the interpreter ends
  penstock::binding::bind_kernels(m);
  penstock::binding::bind_replay(m);
}
