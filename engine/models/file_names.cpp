#include "engine/models/file_names.h"

#include "engine/models/bloom_config.h"
#include "engine/models/qwen2_config.h"
#include "engine/models/vit_config.h"

namespace dstrain {

std::vector<std::string> file_names(const std::string& family, const std::string& name) {
  if (family == "bloom") return bloom_file_names(name);
  if (family == "qwen2") return qwen2_file_names(name);
  return vit_file_names(name);
}

std::string memory_name(const std::string& family, const std::string& name) {
  return family == "vit" ? vit_memory_name(name) : name;
}

}  // namespace dstrain
