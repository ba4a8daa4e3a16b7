#include "smi/subcommands.h"

#include <cstdio>

#include "smi/driver.h"

namespace smi {

Options::Options(const Words& words, std::vector<std::string> known) {
  for (size_t at = 0; at < words.size(); at++) {
    const std::string& word = words[at];
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    bool is_known = false;
    for (const std::string& option : known) {
      const size_t blank = option.find(' ');
      const bool takes_value = option.back() == '=';
      const std::string short_name = option.substr(0, blank);
      const std::string long_name = option.substr(blank + 1, option.size() - blank - 1 - (takes_value ? 1 : 0));
      if (name != short_name && name != long_name) continue;
      is_known = true;
      std::string value;
      if (takes_value && equals != std::string::npos) {
        value = word.substr(equals + 1);
      } else if (takes_value && at + 1 < words.size()) {
        value = words[++at];
      } else if (takes_value || equals != std::string::npos) {
        is_known = false;
      }
      found_.emplace_back(long_name, value);
    }
    if (is_known) continue;
    printf("Option \"%s\" is not recognized by the simulated nvidia-smi.\n", word.c_str());
    code_ = kInvalidArgument;
    return;
  }
}

bool Options::has(const char* long_name) const {
  for (const auto& [name, value] : found_) {
    if (name == long_name) return true;
  }
  return false;
}

std::string Options::value(const char* long_name, const char* otherwise) const {
  for (const auto& [name, value] : found_) {
    if (name == long_name) return value;
  }
  return otherwise;
}

}  // namespace smi
