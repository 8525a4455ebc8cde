// Documents in rows of fixed length, and their tokens in batches.
#include "order/packing.hpp"

#include <nanobind/nanobind.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "order/token_rows.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using Rows = Tuple<OwnedArray<std::int64_t>, OwnedArray<std::uint32_t>, OwnedArray<std::int64_t>,
                   OwnedArray<std::int64_t>>;

Rows pack(const Ints& lengths, std::int64_t row_length, bool split, std::int64_t multiple) {
  PackedRows packed;
  {
    const WithoutGil released;
    packed = pack_documents(view(lengths), {row_length, split, multiple});
  }
  return nb::make_tuple(make_array<std::int64_t>(std::move(packed.offsets)),
                        make_array<std::uint32_t>(std::move(packed.document)),
                        make_array<std::int64_t>(std::move(packed.start)),
                        make_array<std::int64_t>(std::move(packed.length)));
}

template <class Out>
std::size_t lay_out(const Column<std::uint8_t>& tokens, unsigned item_bytes, bool is_signed,
                    const Ints& at, const Ints& lengths, const Ints& targets, std::int64_t pad,
                    bool shifted, const WritableColumn<Out>& inputs,
                    const WritableColumn<Out>& labels, const WritableColumn<Out>& positions) {
  const WithoutGil released;
  return lay_out_tokens<Out>({view_bytes(tokens), item_bytes, is_signed},
                             {view(at), view(lengths), view(targets)}, static_cast<Out>(pad),
                             shifted, view(inputs), view(labels), view(positions));
}

using Placed = Tuple<OwnedArray<std::int64_t>, std::int64_t, OwnedArray<std::int32_t>,
                     OwnedArray<std::int32_t>, std::int64_t, OwnedArray<std::int64_t>>;

// With the lock held: a batch takes a few microseconds.
Placed place(const Ints& offsets, const Ints& lengths, std::int64_t length, std::int64_t multiple,
             bool flat) {
  PlacedPieces placed = place_pieces(view(offsets), view(lengths), {length, multiple, flat});
  return nb::make_tuple(make_array<std::int64_t>(std::move(placed.targets)), placed.places,
                        make_array<std::int32_t>(std::move(placed.starts)),
                        make_array<std::int32_t>(std::move(placed.rooms)), placed.longest,
                        make_array<std::int64_t>(std::move(placed.source)));
}

constexpr auto lay_out_doc =
    "Write inputs, labels and positions of pieces of documents, and pads between them.\n\n"
    "Piece i is `lengths[i]` tokens of `tokens` from the token `at[i]` on, and goes to the places\n"
    "from `targets[i]` on. Returns the piece with the first token that the type of the outputs\n"
    "does not hold, or the number of pieces. IndexError, with nothing written, if a piece leaves\n"
    "the tokens or the outputs.";

}  // namespace

void bind_packing(nb::module_& m) {
  m.def("pack_documents", &pack, "lengths"_a.noconvert(), "row_length"_a, "split"_a, "multiple"_a,
        "Pack documents of these lengths, in their order, into rows by best fit.\n\n"
        "Returns where each row begins among the pieces, and the end; and of each piece the\n"
        "document, its first token there, and its tokens. ValueError for what is out of bounds.");
  m.def(
      "count_packed_rows",
      [](const Ints& lengths, std::int64_t row_length, bool split, std::int64_t multiple) {
        const WithoutGil released;
        return count_packed_rows(view(lengths), {row_length, split, multiple});
      },
      "lengths"_a.noconvert(), "row_length"_a, "split"_a, "multiple"_a,
      "Count the rows that `pack_documents` makes.");
  m.def("place_pieces", &place, "offsets"_a.noconvert(), "lengths"_a.noconvert(), "length"_a,
        "multiple"_a, "flat"_a,
        "Return the places of pieces in a batch of rows, or end to end (`flat`).\n\n"
        "Row r has the pieces offsets[r]:offsets[r + 1]. Returns the first place of each piece; the\n"
        "places in all; the tokens before each sequence, and the end; with a `multiple` of 2 or\n"
        "more the first place of each sequence, and the end; the places of the longest; and of each\n"
        "sequence its piece, or -1 of a gap. IndexError if pieces do not fit into rows.");
  m.def("lay_out_tokens", &lay_out<std::int32_t>, "tokens"_a.noconvert(), "item_bytes"_a,
        "is_signed"_a, "at"_a.noconvert(), "lengths"_a.noconvert(), "targets"_a.noconvert(),
        "pad"_a, "shifted"_a, "inputs"_a.noconvert(), "labels"_a.noconvert(),
        "positions"_a.noconvert(), lay_out_doc);
  m.def("lay_out_tokens", &lay_out<std::int64_t>, "tokens"_a.noconvert(), "item_bytes"_a,
        "is_signed"_a, "at"_a.noconvert(), "lengths"_a.noconvert(), "targets"_a.noconvert(),
        "pad"_a, "shifted"_a, "inputs"_a.noconvert(), "labels"_a.noconvert(),
        "positions"_a.noconvert(), lay_out_doc);
}

}  // namespace penstock::binding
