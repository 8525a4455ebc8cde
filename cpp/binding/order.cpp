#include <nanobind/nanobind.h>

namespace penstock::binding {

void order(nanobind::module_&) {}

}  // namespace penstock::binding
