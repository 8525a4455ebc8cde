// Which implementation of what has several is in use on this processor.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string_view.h>

#include <map>
#include <string_view>

#include "ground/crc32c.hpp"
#include "images/jpeg.hpp"
#include "images/resample.hpp"
#include "index/json_fields.hpp"
#include "index/walk_jsonl.hpp"
#include "order/bitmap.hpp"
#include "order/order.hpp"

namespace penstock::binding {

void bind_kernels(nanobind::module_& m) {
  m.def(
      "list_kernels",
      [] {
        return std::map<std::string_view, std::string_view>{
            {"checksums", crc32c_kernel()},
            {"JPEG", jpeg::name_of(jpeg::list_kernels().back())},
            {"JSON fields", json::list_special_finders().front().name},
            {"lines", jsonl::list_newline_finders().front().name},
            {"orders", levels().back().name},
            {"resizing", images::name_kernel(images::count_kernels() - 1)},
            {"selections", bitmap_kernel()},
        };
      },
      "Return the instruction set that each part of the core uses on this processor.");
}

}  // namespace penstock::binding
