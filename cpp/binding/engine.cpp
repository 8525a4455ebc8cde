#include <nanobind/nanobind.h>

namespace penstock::binding {

void engine(nanobind::module_&) {}

}  // namespace penstock::binding
