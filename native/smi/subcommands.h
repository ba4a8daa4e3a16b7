// Commands of nvidia-smi with options of their own.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace smi {

using Words = std::vector<std::string>;

// Each takes the words after its name, and gives the exit code.
int monitor_gpus(const Words& words);       // dmon
int monitor_processes(const Words& words);  // pmon
int show_topology(const Words& words);      // topo
int show_links(const Words& words);         // nvlink
int show_instances(const Words& words);     // mig

// Options of a subcommand: "-i 0", "--id=0", "-s" and the like.
class Options {
 public:
  // `known`: "-i --id=" for an option with a value, "-s --status" for one without. Others fail.
  Options(const Words& words, std::vector<std::string> known);
  bool has(const char* long_name) const;
  std::string value(const char* long_name, const char* otherwise) const;
  // 0, or the exit code, after saying which option isn't simulated.
  int code() const { return code_; }

 private:
  std::vector<std::pair<std::string, std::string>> found_;
  int code_ = 0;
};

}  // namespace smi
