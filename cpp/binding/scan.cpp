#include <nanobind/nanobind.h>

namespace penstock::binding {

void scan(nanobind::module_&) {}

}  // namespace penstock::binding
