// Fields of JSON lines: values, what is left over, and the same places by every instruction set.
#include "index/json_fields.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

#include "tests/support/check.hpp"

namespace json = penstock::json;
using json::Kind;

namespace {

json::Rows parse(std::string_view line, const std::vector<json::Field>& fields) {
  const std::int64_t bounds[] = {0, static_cast<std::int64_t>(line.size())};
  return json::parse_lines({line.data(), line.size()}, bounds, fields);
}

std::string text_of(const json::Rows& rows) {
  const auto bytes = rows.columns[0].text[0].bytes;
  return {bytes.data(), bytes.size()};
}

bool is_taken(std::string_view line) { return parse(line, {}).left_over.empty(); }

void test_values() {
  const std::string line =
      R"( {"s":"a\u00e9\n\ud83d\ude00\"","i":-9007199254740991,"f":1e2,"b":true,)"
      R"("l":[1, 2],"m":[-0,0.5],"a":{"x":[null]},"\u0069":7} )";
  const auto rows = parse(line, {{"s", Kind::text}, {"i", Kind::whole}, {"f", Kind::fraction},
                                 {"b", Kind::boolean}, {"l", Kind::wholes}, {"m", Kind::fractions},
                                 {"a", Kind::any}, {"none", Kind::text}, {"i", Kind::fraction}});
  CHECK(rows.left_over.empty());
  CHECK(text_of(rows) == "a\xc3\xa9\n\xf0\x9f\x98\x80\"");
  CHECK(rows.columns[0].text[0].characters == 5 && rows.columns[0].text[0].unit_bytes() == 4);
  CHECK(rows.columns[1].whole[0] == 7 && rows.columns[8].fraction[0] == 7);
  CHECK(rows.columns[2].fraction[0] == 100 && rows.columns[3].boolean[0] == 1);
  CHECK((rows.columns[4].whole == std::vector<std::int64_t>{1, 2}));
  CHECK(rows.columns[5].fraction.size() == 2 && !std::signbit(rows.columns[5].fraction[0]));
  const auto& any = rows.columns[6];
  CHECK(line.substr(static_cast<std::size_t>(any.begin[0]),
                    static_cast<std::size_t>(any.end[0] - any.begin[0])) == R"({"x":[null]})");
  CHECK(rows.columns[7].absent[0] == 1 && rows.columns[0].absent[0] == 0);
}

void test_large_numbers() {
  const auto whole = parse(R"({"a":-9223372036854775808})", {{"a", Kind::whole}});
  CHECK(whole.left_over.empty() && whole.columns[0].whole[0] == INT64_MIN);
  const auto exact = parse(R"({"a":9007199254740991})", {{"a", Kind::fraction}});
  CHECK(exact.left_over.empty() && exact.columns[0].fraction[0] == 9007199254740991.0);
  // Python decides about whole numbers that a double may not hold.
  CHECK(parse(R"({"a":9007199254740993})", {{"a", Kind::fraction}}).left_over.size() == 1);
  CHECK(parse(R"({"a":-9007199254740993})", {{"a", Kind::fraction}}).left_over.size() == 1);
}

void test_left_over() {
  for (const char* line : {"", "{", "{}}", "[1]", "{,}", R"({"a":1,})", R"({"a" 1})", R"({"a":01})",
                           R"({"a":1.})", R"({"a":-})", R"({"a":1e})", R"({"a":tru})", "{\"a\":\"\n\"}",
                           R"({"a":"\x"})", R"({"a":"\ud800"})", R"({"a":"\udc00"})", R"({"a":"\u12)",
                           "{\"a\":\"\xff\"}", "{\"\xc3\":1}", R"({"a":[1,]})", R"({"a":{1:2}})",
                           R"({"a":"\)", R"({"a":1e999})"})
    CHECK(!is_taken(line));
  CHECK(!is_taken({"{}\0", 3}));
  for (const char* line : {"{}", " {\t} ", R"({"a":[[],{},"",0,-0.5e-7,true,false,null]})",
                           "{\"\xc3\xa9\":\"\x7f\"}", R"({"a":"\b\f\/\u0000"})"})
    CHECK(is_taken(line));
  for (const char* line : {R"({"a":1.0})", R"({"a":9223372036854775808})", R"({"a":true})",
                           R"({"a":"1"})", R"({"a":[1]})"})
    CHECK(parse(line, {{"a", Kind::whole}}).left_over.size() == 1);
}

// A row that is left over leaves nothing in the columns, and the next one is whole.
void test_rows() {
  const std::string text = R"({"l":[1,2],"l":[3]}{"l":[4,5],"x"}{"l":null}{"l":[6]})";
  const std::int64_t bounds[] = {0, 19, 34, 44, 53};
  const json::Field fields[] = {{"l", Kind::wholes}};
  const auto rows = json::parse_lines({text.data(), text.size()}, bounds, fields);
  CHECK((rows.left_over == std::vector<std::int64_t>{1}));
  CHECK((rows.columns[0].whole == std::vector<std::int64_t>{3, 6}));
  CHECK((rows.columns[0].end == std::vector<std::int64_t>{1, 1, 1, 2}));
  CHECK((rows.columns[0].absent == std::vector<std::uint8_t>{0, 1, 1, 0}));
  bool refused = false;
  try {
    const std::int64_t wrong[] = {0, 54};
    json::parse_lines({text.data(), text.size()}, wrong, fields);
  } catch (const std::out_of_range&) {
    refused = true;
  }
  CHECK(refused);
}

void test_finders() {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 200, 'a');
    for (unsigned i = 0; i < random() % 4 && !text.empty(); ++i)
      text[random() % text.size()] = static_cast<char>(random());
    for (std::size_t start = 0; start <= text.size(); start += 7) {
      unsigned wanted_high = 0;
      const char* end = text.data() + text.size();
      const auto finders = json::list_special_finders();
      const char* wanted = finders.back().find(text.data() + start, end, wanted_high);
      for (const auto [name, find] : finders) {
        unsigned high = 0;
        CHECK(find(text.data() + start, end, high) == wanted);
        CHECK((wanted_high & 0x80) == 0 || (high & 0x80) != 0);
      }
    }
  }
}

}  // namespace

int main() {
  test_values();
  test_large_numbers();
  test_left_over();
  test_rows();
  test_finders();
}
