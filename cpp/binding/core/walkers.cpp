// The walkers of containers: columns out, and the flaw where there is one.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding/columns.hpp"
#include "index/walk_recordio.hpp"
#include "index/walk_tar.hpp"
#include "index/walk_tfrecord.hpp"
#include "binding/core/walk_source.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

// Reads go far ahead where each of them is a round trip.
Reach reach_of(bool local) { return local ? Reach::local() : Reach::remote(); }

nb::tuple walk_tfrecord(int file, const nb::object& read, std::uint64_t size,
                        const std::string& check, std::vector<std::string> features) {
  using tfrecord::Check;
  tfrecord::Options options;
  if (check == "none") options.check = Check::none;
  else if (check == "length") options.check = Check::length;
  else if (check == "all") options.check = Check::all;
  else throw nb::value_error("check is none of 'none', 'length', 'all'");
  options.features = std::move(features);
  auto found = walked(file, read, size, [&](Source& source, bool local) {
    return tfrecord::walk(source, reach_of(local), options);
  });
  nb::dict columns;
  columns["offset"] = array<std::int64_t>(std::move(found.offset));
  columns["length"] = array<std::int64_t>(std::move(found.length));
  if (!options.features.empty()) {
    auto& f = found.features;
    columns["feature_kind"] = array<std::uint8_t>(std::move(f.kind));
    columns["feature_values"] = array<std::int64_t>(std::move(f.values));
    columns["feature_offset"] = array<std::int64_t>(std::move(f.offset));
    columns["feature_length"] = array<std::int64_t>(std::move(f.length));
    columns["feature_value"] = array<std::int64_t>(std::move(f.value));
  }
  return nb::make_tuple(columns, flaw_of(found.flaw));
}

nb::tuple walk_recordio(int file, const nb::object& read, std::uint64_t size, bool header,
                        bool strip) {
  auto found = walked(file, read, size, [&](Source& source, bool local) {
    return recordio::walk(source, reach_of(local), {header || strip, strip});
  });
  nb::dict columns;
  columns["first"] = array<std::int64_t>(std::move(found.first));
  columns["offset"] = array<std::int64_t>(std::move(found.offset));
  columns["length"] = array<std::int64_t>(std::move(found.length));
  columns["at"] = array<std::int64_t>(std::move(found.at));
  if (header || strip) {
    columns["flag"] = array<std::uint32_t>(std::move(found.flag));
    columns["label"] = array<float>(std::move(found.label));
    columns["id"] = array<std::uint64_t>(std::move(found.id));
  }
  return nb::make_tuple(columns, flaw_of(found.flaw));
}

nb::tuple walk_tar(int file, const nb::object& read, std::uint64_t size, bool ignore_zeros,
                   bool end_required, bool duplicates, std::optional<std::string> label) {
  tar::Options options{ignore_zeros, end_required, duplicates, std::move(label)};
  auto found = walked(file, read, size, [&](Source& source, bool local) {
    return tar::walk(source, reach_of(local), options);
  });
  nb::dict columns;
  columns["key_text"] = array<std::uint8_t>(std::move(found.keys.text));
  columns["key_ends"] = array<std::int64_t>(std::move(found.keys.ends));
  columns["at"] = array<std::int64_t>(std::move(found.at));
  columns["sample"] = array<std::int64_t>(std::move(found.sample));
  columns["extension"] = array<std::int32_t>(std::move(found.extension));
  columns["offset"] = array<std::int64_t>(std::move(found.offset));
  columns["length"] = array<std::int64_t>(std::move(found.length));
  columns["extension_text"] = array<std::uint8_t>(std::move(found.extensions.text));
  columns["extension_ends"] = array<std::int64_t>(std::move(found.extensions.ends));
  columns["label_value"] = array<std::int64_t>(std::move(found.label_value));
  columns["label_is_integer"] = array<std::uint8_t>(std::move(found.label_is_integer));
  columns["label_text"] = array<std::uint8_t>(std::move(found.labels.text));
  columns["label_ends"] = array<std::int64_t>(std::move(found.labels.ends));
  columns["dropped"] = found.dropped;
  return nb::make_tuple(columns, flaw_of(found.flaw));
}

}  // namespace

void bind_walkers(nb::module_& m) {
  m.def("walk_tfrecord", &walk_tfrecord, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("check") = "length", nb::arg("features") = std::vector<std::string>(),
        "Records of a TFRecord file: (columns, None or (offset, message)).");
  m.def("walk_recordio", &walk_recordio, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("header") = false, nb::arg("strip") = false,
        "Records of a RecordIO file: (columns, None or (offset, message)).");
  m.def("walk_tar", &walk_tar, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("ignore_zeros") = false, nb::arg("end_required") = true,
        nb::arg("duplicates") = false, nb::arg("label").none() = nb::none(),
        "Members of a tar archive in samples: (columns, None or (offset, message)).");
}

}  // namespace penstock::binding
