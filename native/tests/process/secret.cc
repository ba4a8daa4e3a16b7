// Secrets and the numbers that prove them.
#include "process/secret.h"

#include <set>

#include "test.h"

using namespace gpu_owner;

TEST("the number of a secret is SHA-256 over and over") {
  // python3: d = b'0123456789abcdef0123456789abcdef'; for _ in range(256): d = hashlib.sha256(d).digest();
  // int.from_bytes(d[:8], 'big') >> 15
  CHECK_EQUAL(process::number_of_secret("0123456789abcdef0123456789abcdef"), int64_t{43667715424973});
}

TEST("secrets are 32 digits, each another, and so are their numbers") {
  std::set<std::string> secrets;
  std::set<int64_t> numbers;
  for (int i = 0; i < 50; i++) {
    const std::string secret = process::new_secret();
    CHECK_EQUAL(secret.size(), 32U);
    secrets.insert(secret);
    numbers.insert(process::number_of_secret(secret));
  }
  CHECK_EQUAL(secrets.size(), 50U);
  CHECK_EQUAL(numbers.size(), 50U);
  CHECK(*numbers.begin() >= 0 && *numbers.rbegin() < int64_t{1} << 49);
}
