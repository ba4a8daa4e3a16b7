#include "process/secret.h"

#include <sys/random.h>

#include <array>
#include <cstring>

namespace gpu_owner::process {
namespace {

constexpr int kRounds = 256;
constexpr int kBits = 49;  // within what JavaScript counts exactly, in at most 15 digits

using Digest = std::array<uint8_t, 32>;

constexpr uint32_t kConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotated(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

// FIPS 180-4, of at most 55 bytes: one block with its padding.
Digest sha256(const uint8_t* data, size_t size) {
  uint8_t block[64] = {};
  memcpy(block, data, size);
  block[size] = 0x80;
  block[62] = static_cast<uint8_t>(size * 8 >> 8);
  block[63] = static_cast<uint8_t>(size * 8);
  uint32_t words[64];
  for (int i = 0; i < 16; i++) {
    const uint8_t* at = block + 4 * i;
    words[i] = uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
  }
  for (int i = 16; i < 64; i++) {
    const uint32_t low = rotated(words[i - 15], 7) ^ rotated(words[i - 15], 18) ^ words[i - 15] >> 3;
    const uint32_t high = rotated(words[i - 2], 17) ^ rotated(words[i - 2], 19) ^ words[i - 2] >> 10;
    words[i] = words[i - 16] + low + words[i - 7] + high;
  }
  constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint32_t state[8];
  memcpy(state, kStart, sizeof state);
  for (int i = 0; i < 64; i++) {
    const uint32_t choice = (state[4] & state[5]) ^ (~state[4] & state[6]);
    const uint32_t majority = (state[0] & state[1]) ^ (state[0] & state[2]) ^ (state[1] & state[2]);
    const uint32_t one = state[7] + (rotated(state[4], 6) ^ rotated(state[4], 11) ^ rotated(state[4], 25)) + choice +
                         kConstants[i] + words[i];
    const uint32_t two = (rotated(state[0], 2) ^ rotated(state[0], 13) ^ rotated(state[0], 22)) + majority;
    state[7] = state[6];
    state[6] = state[5];
    state[5] = state[4];
    state[4] = state[3] + one;
    state[3] = state[2];
    state[2] = state[1];
    state[1] = state[0];
    state[0] = one + two;
  }
  Digest digest;
  for (size_t i = 0; i < 8; i++) {
    const uint32_t word = kStart[i] + state[i];
    for (size_t byte = 0; byte < 4; byte++) digest[4 * i + byte] = static_cast<uint8_t>(word >> (24 - 8 * byte));
  }
  return digest;
}

}  // namespace

std::string new_secret() {
  uint8_t bytes[16];
  if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof bytes)) return "";
  std::string digits;
  for (const uint8_t byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

int64_t number_of_secret(const std::string& secret) {
  constexpr size_t kMaxSize = 55;
  Digest digest =
      sha256(reinterpret_cast<const uint8_t*>(secret.data()), secret.size() < kMaxSize ? secret.size() : kMaxSize);
  for (int i = 1; i < kRounds; i++) digest = sha256(digest.data(), digest.size());
  uint64_t number = 0;
  for (size_t i = 0; i < 8; i++) number = number << 8 | digest[i];
  return static_cast<int64_t>(number >> (64 - kBits));
}

}  // namespace gpu_owner::process
