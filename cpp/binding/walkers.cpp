// The walkers of JSONL, TFRecord, RecordIO, tar and MP4.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding/arrays.hpp"
#include "index/walk_jsonl.hpp"
#include "index/walk_mp4.hpp"
#include "index/walk_recordio.hpp"
#include "index/walk_tar.hpp"
#include "index/walk_tfrecord.hpp"
#include "binding/walk_source.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

// Reads go far ahead if each of them is a round trip.
ReadPolicy choose_policy(bool local) {
  return local ? ReadPolicy::local() : ReadPolicy::remote();
}

WalkResult walk_jsonl(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
                      std::uint64_t start) {
  const auto walk = [](Source& source, bool local) {
    return jsonl::walk(source, choose_policy(local));
  };
  auto result = walk_file(file, read, size, walk, start);
  nb::dict columns;
  columns["offset"] = make_array<std::int64_t>(std::move(result.offset));
  columns["length"] = make_array<std::int64_t>(std::move(result.length));
  return make_result(columns, result.parse_error);
}

WalkResult walk_tfrecord(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
                        const std::string& check, std::vector<std::string> features,
                        std::uint64_t begin, std::optional<std::uint64_t> stop) {
  using tfrecord::Check;
  tfrecord::Options options;
  if (check == "none") options.check = Check::none;
  else if (check == "length") options.check = Check::length;
  else if (check == "all") options.check = Check::all;
  else throw nb::value_error("check is none of 'none', 'length', 'all'");
  options.features = std::move(features);
  options.begin = begin;
  options.stop = stop;
  auto result = walk_file(file, read, size, [&](Source& source, bool local) {
    return tfrecord::walk(source, choose_policy(local), options);
  });
  nb::dict columns;
  columns["offset"] = make_array<std::int64_t>(std::move(result.offset));
  columns["length"] = make_array<std::int64_t>(std::move(result.length));
  columns["begin"] = result.begin;
  columns["end"] = result.end;
  if (!options.features.empty()) {
    auto& f = result.features;
    columns["feature_kind"] = make_array<std::uint8_t>(std::move(f.kind));
    columns["feature_values"] = make_array<std::int64_t>(std::move(f.values));
    columns["feature_offset"] = make_array<std::int64_t>(std::move(f.offset));
    columns["feature_length"] = make_array<std::int64_t>(std::move(f.length));
    columns["feature_value"] = make_array<std::int64_t>(std::move(f.value));
  }
  return make_result(columns, result.parse_error);
}

WalkResult walk_recordio(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
                         bool header,
                        bool strip) {
  auto result = walk_file(file, read, size, [&](Source& source, bool local) {
    return recordio::walk(source, choose_policy(local), {header || strip, strip});
  });
  nb::dict columns;
  columns["first"] = make_array<std::int64_t>(std::move(result.first));
  columns["offset"] = make_array<std::int64_t>(std::move(result.offset));
  columns["length"] = make_array<std::int64_t>(std::move(result.length));
  columns["at"] = make_array<std::int64_t>(std::move(result.at));
  if (header || strip) {
    columns["flag"] = make_array<std::uint32_t>(std::move(result.flag));
    columns["label"] = make_array<float>(std::move(result.label));
    columns["id"] = make_array<std::uint64_t>(std::move(result.id));
  }
  return make_result(columns, result.parse_error);
}

WalkResult walk_tar(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
                    bool ignore_zeros, bool end_required, bool duplicates,
                    std::optional<std::string> label, std::uint64_t start) {
  tar::Options options{ignore_zeros, end_required, duplicates, std::move(label)};
  const auto walk = [&](Source& source, bool local) {
    return tar::walk(source, choose_policy(local), options);
  };
  auto result = walk_file(file, read, size, walk, start);
  nb::dict columns;
  columns["key_text"] = make_array<std::uint8_t>(std::move(result.keys.text));
  columns["key_ends"] = make_array<std::int64_t>(std::move(result.keys.ends));
  columns["at"] = make_array<std::int64_t>(std::move(result.at));
  columns["sample"] = make_array<std::int64_t>(std::move(result.sample));
  columns["extension"] = make_array<std::int32_t>(std::move(result.extension));
  columns["offset"] = make_array<std::int64_t>(std::move(result.offset));
  columns["length"] = make_array<std::int64_t>(std::move(result.length));
  columns["extension_text"] = make_array<std::uint8_t>(std::move(result.extensions.text));
  columns["extension_ends"] = make_array<std::int64_t>(std::move(result.extensions.ends));
  columns["label_value"] = make_array<std::int64_t>(std::move(result.label_value));
  columns["label_is_integer"] = make_array<std::uint8_t>(std::move(result.label_is_integer));
  columns["label_text"] = make_array<std::uint8_t>(std::move(result.labels.text));
  columns["label_ends"] = make_array<std::int64_t>(std::move(result.labels.ends));
  columns["dropped"] = result.dropped;
  columns["ended"] = result.ended;
  columns["inherited"] = result.inherited;
  return make_result(columns, result.parse_error);
}

WalkResult walk_mp4(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
                    bool one_group, bool sound) {
  auto result = walk_file(file, read, size,
                          [&](Source& source, bool) { return mp4::walk(source, one_group, sound); });
  nb::dict columns;
  if (sound) {
    columns["channels"] = result.channels;
    columns["start"] = result.start;
    columns["stop"] = result.stop;
  } else {
    columns["width"] = result.width;
    columns["height"] = result.height;
    columns["turns"] = result.turns;
  }
  columns["codec"] = nb::str(result.codec.data(), result.codec.size());
  columns["config"] = nb::bytes(result.config.data(), result.config.size());
  columns["scale"] = result.scale;
  columns["end"] = result.end;
  columns["size"] = make_array<std::uint32_t>(std::move(result.size));
  columns["shift"] = make_array<std::int16_t>(std::move(result.shift));
  columns["frames"] = make_array<std::int64_t>(std::move(result.frames));
  columns["first_packet"] = make_array<std::int64_t>(std::move(result.first_packet));
  columns["last_packet"] = make_array<std::int64_t>(std::move(result.last_packet));
  columns["place"] = make_array<std::int64_t>(std::move(result.place));
  columns["pieces"] = make_array<std::int64_t>(std::move(result.pieces));
  columns["offset"] = make_array<std::int64_t>(std::move(result.offset));
  columns["length"] = make_array<std::int64_t>(std::move(result.length));
  columns["times"] = make_array<std::int64_t>(std::move(result.times));
  return make_result(columns, result.parse_error);
}

}  // namespace

void bind_walkers(nb::module_& m) {
  m.def("walk_jsonl", &walk_jsonl, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("start") = 0,
        "Find the lines of a JSONL file: (columns, None or (offset, message)).");
  m.def("walk_tfrecord", &walk_tfrecord, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("check") = "length", nb::arg("features") = std::vector<std::string>(),
        nb::arg("begin") = 0, nb::arg("stop").none() = nb::none(),
        "Find the records of a TFRecord file: (columns, None or (offset, message)).");
  m.def("walk_recordio", &walk_recordio, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("header") = false, nb::arg("strip") = false,
        "Find the records of a RecordIO file: (columns, None or (offset, message)).");
  m.def("walk_tar", &walk_tar, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("ignore_zeros") = false, nb::arg("end_required") = true,
        nb::arg("duplicates") = false, nb::arg("label").none() = nb::none(), nb::arg("start") = 0,
        "Find the members of a tar archive and their samples: (columns, None or (offset, message)).");
  m.def("walk_mp4", &walk_mp4, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::arg("one_group") = false, nb::arg("sound") = false,
        "Find the frames of an MP4 file's track of video, or of sound: (columns, None or (offset, message)).");
}

}  // namespace penstock::binding
