// Fields of JSON lines as columns: numbers as arrays, strings as Python's.
#include "index/json_fields.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using json::Kind;

constexpr std::string_view kind_names[] = {"str", "int", "float", "bool", "ints", "floats", "any"};

Kind find_kind(const std::string& name) {
  for (std::size_t i = 0; i < std::size(kind_names); ++i)
    if (name == kind_names[i]) return static_cast<Kind>(i);
  throw nb::value_error("a kind of field is none of str, int, float, bool, ints, floats, any, bytes");
}

#ifdef Py_LIMITED_API

// A list of str, None where the field is absent. The stable ABI makes a str from UTF-8 only, with the
// GIL held.
nb::list make_strings(const json::Column& column) {
  const std::size_t count = column.text.size();
  nb::list list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) throw nb::python_error();
  for (std::size_t row = 0; row < count; ++row) {
    nb::object one = nb::none();
    if (column.absent[row] == 0) {
      const auto bytes = column.text[row].bytes;
      one = nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr));
      if (!one.is_valid()) throw nb::python_error();
    }
    if (PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(row), one.release().ptr()) != 0)
      throw nb::python_error();
  }
  return list;
}

#else

// A list of str, None where the field is absent. Memory is taken with the GIL, and filled without.
nb::list make_strings(const json::Column& column) {
  const std::size_t count = column.text.size();
  std::vector<nb::object> made(count);
  for (std::size_t row = 0; row < count; ++row) {
    if (column.absent[row] != 0) continue;
    const Utf8Text& text = column.text[row];
    const Py_UCS4 widest = text.is_ascii() ? 0x7f : text.unit_bytes() == 1 ? 0xff
                           : text.unit_bytes() == 2 ? 0xffff : 0x10ffff;
    PyObject* one = PyUnicode_New(static_cast<Py_ssize_t>(text.characters), widest);
    if (one == nullptr) throw nb::python_error();
    made[row] = nb::steal(one);
  }
  {
    const WithoutGil released;
    for (std::size_t row = 0; row < count; ++row)
      if (made[row].is_valid() && column.text[row].characters != 0)
        widen_utf8(column.text[row], PyUnicode_DATA(made[row].ptr()));
  }
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(count));
  if (list == nullptr) throw nb::python_error();
  for (std::size_t row = 0; row < count; ++row)
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(row),
                    made[row].is_valid() ? made[row].release().ptr() : nb::none().release().ptr());
  return nb::steal<nb::list>(list);
}

#endif

// The bytes of all strings, end to end, and where each of them begins and ends.
nb::tuple make_bytes(const json::Column& column) {
  std::vector<std::int64_t> offsets{0};
  std::vector<char> bytes;
  {
    const WithoutGil released;
    for (const Utf8Text& text : column.text)
      offsets.push_back(offsets.back() + static_cast<std::int64_t>(text.bytes.size()));
    bytes.reserve(static_cast<std::size_t>(offsets.back()));
    for (const Utf8Text& text : column.text)
      bytes.insert(bytes.end(), text.bytes.begin(), text.bytes.end());
  }
  return nb::make_tuple(make_array<std::uint8_t>(std::move(bytes)),
                        make_array<std::int64_t>(std::move(offsets)));
}

template <class T>
nb::tuple make_lists(std::vector<T>&& values, json::Column& column) {
  auto offsets = std::move(column.end);
  offsets.insert(offsets.begin(), 0);
  return nb::make_tuple(make_array<T>(std::move(values)), make_array<std::int64_t>(std::move(offsets)));
}

nb::object make_column(json::Column& column, bool as_bytes) {
  switch (column.kind) {
    case Kind::text: return as_bytes ? nb::object(make_bytes(column)) : make_strings(column);
    case Kind::whole: return nb::cast(make_array<std::int64_t>(std::move(column.whole)));
    case Kind::fraction: return nb::cast(make_array<double>(std::move(column.fraction)));
    case Kind::boolean: return nb::cast(make_array<bool>(std::move(column.boolean)));
    case Kind::wholes: return make_lists(std::move(column.whole), column);
    case Kind::fractions: return make_lists(std::move(column.fraction), column);
    case Kind::any: break;
  }
  return nb::make_tuple(make_array<std::int64_t>(std::move(column.begin)),
                        make_array<std::int64_t>(std::move(column.end)));
}

Tuple<OwnedArray<std::int64_t>, List<nb::any>, List<OwnedArray<bool>>> parse_json_lines(
    const Column<std::uint8_t>& text, const Ints& bounds, std::vector<std::string> keys,
    const std::vector<std::string>& kinds) {
  if (keys.size() != kinds.size()) throw nb::value_error("each key has a kind");
  std::vector<json::Field> fields;
  for (std::size_t i = 0; i < keys.size(); ++i)
    fields.push_back({std::move(keys[i]), kinds[i] == "bytes" ? Kind::text : find_kind(kinds[i])});
  json::Rows rows;
  {
    const WithoutGil released;
    rows = json::parse_lines(view_text(text), view(bounds), fields);
  }
  List<nb::any> columns{nb::list()};
  List<OwnedArray<bool>> absent{nb::list()};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    columns.append(make_column(rows.columns[i], kinds[i] == "bytes"));
    absent.append(make_array<bool>(std::move(rows.columns[i].absent)));
  }
  return nb::make_tuple(make_array<std::int64_t>(std::move(rows.left_over)), columns, absent);
}

constexpr std::size_t lines_at_once = 16;  // that are parsed and then moved, while in the cache

// Strings of one field at the start of the text that they come from: no memory is taken, whose fresh
// pages would cost more than the parsing. A string is never longer than its line, so that it does
// not reach those behind it.
OwnedArray<std::int64_t> extract_json_strings(const WritableColumn<std::uint8_t>& text,
                                              const Ints& bounds, std::string key) {
  std::vector<std::int64_t> offsets{0};
  {
    const WithoutGil released;
    char* const start = reinterpret_cast<char*>(text.data());
    const json::Field field{std::move(key), Kind::text};
    const auto all = view(bounds);
    for (std::size_t first = 0; first + 1 < all.size(); first += lines_at_once) {
      const auto some = all.subspan(first, std::min(lines_at_once + 1, all.size() - first));
      const auto rows = json::parse_lines({start, text.shape(0)}, some, {&field, 1});
      const auto& column = rows.columns[0];
      if (std::ranges::find(column.absent, 1) != column.absent.end()) break;
      for (const Utf8Text& one : column.text) {
        const std::size_t size = one.bytes.size();
        if (size != 0) std::memmove(start + offsets.back(), one.bytes.data(), size);
        offsets.push_back(offsets.back() + static_cast<std::int64_t>(size));
      }
    }
  }
  return make_array<std::int64_t>(std::move(offsets));
}

}  // namespace

void bind_json_fields(nb::module_& m) {
  m.def("parse_json_lines", &parse_json_lines, nb::arg("text").noconvert(),
        nb::arg("bounds").noconvert(), nb::arg("keys"), nb::arg("kinds"),
        "Parse fields of the lines text[bounds[i]:bounds[i+1]]: (left_over, columns, absent).\n\n"
        "Rows that are left over, for being broken or unusual, and those of absent values, are\n"
        "empty. Columns are lists of str or None; arrays; for \"ints\", \"floats\" and \"bytes\"\n"
        "values and offsets; for \"any\" where values begin and end in the text.");
  m.def("extract_json_strings", &extract_json_strings, nb::arg("text").noconvert(),
        nb::arg("bounds").noconvert(), nb::arg("key"),
        "Put the strings of a key at the start of the text, as UTF-8: their offsets.\n\n"
        "Ends before a row that is left over or absent. Of lines that were not taken, the text\n"
        "stays as it is.");
}

}  // namespace penstock::binding
