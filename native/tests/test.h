// A small test framework.
//
//   TEST("a lock survives fork") {
//     const int file = open(…);
//     REQUIRE(file >= 0);                 // ends the test when it fails
//     CHECK_EQUAL(try_lock(file), 0);     // goes on, and says what the values were
//   }
//
// Each test runs in a process of its own, forked from a runner that has no threads and has loaded no driver: it may
// start threads, install signal handlers, change the environment, crash or hang. Processes that it has started are
// killed when it ends.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

namespace tests {

struct Test {
  const char* file;
  const char* title;
  void (*run)();
  int tries;  // on a busy machine
};
struct Registration {
  Registration(const char* file, const char* title, void (*run)(), int tries = 1);
};

// A program of its own within the tests' executable, for what must survive exec: run_program() in support/processes.h.
struct Program {
  Program(const char* name, int (*run)(int count, char** arguments));
};

// Prints where and what; the test has failed from then on.
void fail(const char* file, int line, const std::string& what);
[[noreturn]] void end_test();
// Ends the test as one that can't run here.
[[noreturn]] void skip(const std::string& why);

// How much longer things take here than natively: under valgrind, or with a sanitizer. For time limits and repetitions.
int slowness();
bool under_valgrind();

inline std::string text_of(const std::string& value) { return '"' + value + '"'; }
inline std::string text_of(const char* value) { return value == nullptr ? "null" : text_of(std::string(value)); }
inline std::string text_of(bool value) { return value ? "true" : "false"; }
inline std::string text_of(const void* value) { return value == nullptr ? "null" : "a pointer"; }
template <typename Value>
std::enable_if_t<std::is_arithmetic_v<Value> || std::is_enum_v<Value>, std::string> text_of(Value value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::to_string(static_cast<std::underlying_type_t<Value>>(value));
  } else {
    return std::to_string(value);
  }
}

template <typename Left, typename Right>
bool check_equal(const char* file, int line, const char* code, const Left& left, const Right& right) {
  bool equal;
  if constexpr (std::is_integral_v<Left> && std::is_integral_v<Right>) {
    equal = static_cast<std::common_type_t<Left, Right>>(left) == static_cast<std::common_type_t<Left, Right>>(right);
  } else if constexpr (std::is_convertible_v<Left, std::string_view> &&
                       std::is_convertible_v<Right, std::string_view>) {
    equal = std::string_view(left) == std::string_view(right);  // also where both are pointers
  } else {
    equal = left == right;
  }
  if (!equal) fail(file, line, std::string(code) + ": " + text_of(left) + ", not " + text_of(right));
  return equal;
}

}  // namespace tests

#define TESTS_JOIN2(a, b) a##b
#define TESTS_JOIN(a, b) TESTS_JOIN2(a, b)

#define TEST(title) TESTS_TEST(title, __COUNTER__, 1)
// A test that fails where threads don't get to run soon. Where more of them want to than there are processors, it has
// several tries.
#define TIMED_TEST(title) TESTS_TEST(title, __COUNTER__, 4)
#define TESTS_TEST(title, number, tries)                                                                           \
  static void TESTS_JOIN(test_, number)();                                                                         \
  static const ::tests::Registration TESTS_JOIN(registration_, number)(__FILE__, title, TESTS_JOIN(test_, number), \
                                                                       tries);                                     \
  static void TESTS_JOIN(test_, number)()

#define PROGRAM(name)                                                                                       \
  static int TESTS_JOIN(program_, name)(int count, char** arguments);                                       \
  static const ::tests::Program TESTS_JOIN(program_registration_, name)(#name, TESTS_JOIN(program_, name)); \
  static int TESTS_JOIN(program_, name)([[maybe_unused]] int count, [[maybe_unused]] char** arguments)

#define CHECK(condition) ((condition) ? true : (::tests::fail(__FILE__, __LINE__, #condition), false))
#define CHECK_EQUAL(value, expected) \
  ::tests::check_equal(__FILE__, __LINE__, #value " == " #expected, (value), (expected))
#define REQUIRE(condition) (CHECK(condition) ? void() : ::tests::end_test())
#define REQUIRE_EQUAL(value, expected) (CHECK_EQUAL(value, expected) ? void() : ::tests::end_test())
