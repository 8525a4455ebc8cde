// The walkers of containers: columns out, and the flaw where there is one.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "crc32c.hpp"
#include "file_source.hpp"
#include "gil.hpp"
#include "walk_recordio.hpp"
#include "walk_tar.hpp"
#include "walk_tfrecord.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

constexpr unsigned reads_between_signals = 64;

// A file that is walked without the GIL; it is taken now and then, so that Ctrl-C is heard.
struct HeardFile : FileSource {
  using FileSource::FileSource;

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    if (++reads_ % reads_between_signals == 0) {
      nb::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) {
        raised = std::make_exception_ptr(nb::python_error());
        return -EINTR;
      }
    }
    return FileSource::read(offset, out);
  }

  std::exception_ptr raised;

 private:
  unsigned reads_ = 0;
};

// A file that a function of Python reads.
struct CalledSource : Source {
  CalledSource(nb::object function, std::uint64_t bytes)
      : Source(bytes), function_(std::move(function)) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    nb::gil_scoped_acquire gil;
    try {
      const nb::bytes data = nb::cast<nb::bytes>(function_(offset, out.size()));
      const std::size_t n = std::min(data.size(), out.size());
      std::memcpy(out.data(), data.c_str(), n);
      return static_cast<std::int64_t>(n);
    } catch (...) {
      raised = std::current_exception();
      return -EIO;
    }
  }

  std::exception_ptr raised;

 private:
  nb::object function_;
};

// Hands a vector or string to numpy without a copy.
template <typename T, typename Container>
nb::object array(Container&& values) {
  using Owned = std::remove_reference_t<Container>;
  auto* owned = new Owned(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Owned*>(p); });
  auto* data = reinterpret_cast<T*>(owned->data());
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {owned->size()}, owner));
}

// Names in files may be no UTF-8.
nb::object text(const std::string& message) {
  return nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()),
                                        "replace"));
}

nb::object flaw_of(const std::optional<Flaw>& flaw) {
  if (!flaw) return nb::none();
  return nb::make_tuple(flaw->offset, text(flaw->message));
}

// Walks without the GIL; raises what Python raised meanwhile, or OSError where reading failed.
template <typename Found, typename Read, typename Walk>
Found walked(Read& source, const Walk& walk) {
  Found found = [&] {
    const WithoutGil released;
    return walk(source);
  }();
  if (source.raised) std::rethrow_exception(source.raised);
  if (found.error != 0) {
    errno = found.error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return found;
}

template <typename Found, typename Walk>
Found walked(int file, const nb::object& read, std::uint64_t size, const Walk& walk) {
  if (file >= 0) {
    HeardFile source(file, size);
    return walked<Found>(source, [&](Source& s) { return walk(s, Reach::local()); });
  }
  CalledSource source(read, size);
  return walked<Found>(source, [&](Source& s) { return walk(s, Reach::remote()); });
}

nb::tuple walk_tfrecord(int file, const nb::object& read, std::uint64_t size,
                        const std::string& check, std::vector<std::string> features) {
  using tfrecord::Check;
  tfrecord::Options options;
  if (check == "none") options.check = Check::none;
  else if (check == "length") options.check = Check::length;
  else if (check == "all") options.check = Check::all;
  else throw nb::value_error("check is none of 'none', 'length', 'all'");
  options.features = std::move(features);
  auto found = walked<tfrecord::Walk>(file, read, size, [&](Source& source, const Reach& reach) {
    return tfrecord::walk(source, reach, options);
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
  auto found = walked<recordio::Walk>(file, read, size, [&](Source& source, const Reach& reach) {
    return recordio::walk(source, reach, {header || strip, strip});
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
  auto found = walked<tar::Walk>(file, read, size, [&](Source& source, const Reach& reach) {
    return tar::walk(source, reach, options);
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

void walk(nb::module_& m) {
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
  m.def(
      "crc32c",
      [](const nb::bytes& data) {
        return crc32c(std::as_bytes(std::span(data.c_str(), data.size())));
      },
      nb::arg("data"), "CRC-32C of bytes.");
}

}  // namespace penstock::binding
