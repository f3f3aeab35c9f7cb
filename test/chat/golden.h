#pragma once

#include <string>
#include <vector>

#include "engine/chat/json_reader.h"
#include "engine/chat/template.h"
#include "engine/trace/input_stream.h"

namespace dstrain::chat {

/// test/golden/chat/renders.json.gz, which make_golden.py wrote.
struct Golden {
  struct Chat {
    std::string name;
    ChatInput input;
  };
  struct Render {
    bool refused = false;
    std::string text;
    std::vector<std::pair<std::size_t, std::size_t>> marks;  ///< bytes of `text`
  };
  struct Case {
    std::string name;
    std::string text;             ///< the template
    std::vector<Render> renders;  ///< of each chat
  };

  std::vector<Chat> chats;
  std::vector<Case> cases;
};

inline const Value& at(const Value& dict, std::string_view key) {
  return *dict.as_dict()->find(key);
}

inline Golden::Chat golden_chat(const Value& value, const Value& tokens) {
  Golden::Chat chat{.name = at(value, "name").as_text()->bytes(), .input = {}};
  chat.input.messages = at(value, "messages");
  for (const auto& [key, token] : tokens.as_dict()->entries())
    chat.input.variables.emplace_back(key.bytes(), token);
  for (const auto& [key, more] : at(value, "more").as_dict()->entries()) {
    if (key.bytes() == "tools") {
      chat.input.tools = more;
    } else if (key.bytes() == "documents") {
      chat.input.documents = more;
    } else if (key.bytes() == "add_generation_prompt") {
      chat.input.add_generation_prompt = *more.as_bool();
    } else {
      chat.input.variables.emplace_back(key.bytes(), more);
    }
  }
  return chat;
}

inline const Golden& golden() {
  static const Golden read = [] {
    const std::string path = "test/golden/chat/renders.json.gz";
    const std::string json = trace::read_text(path, std::size_t{64} << 20);
    const Value all = read_json_value(json, line_and_column(json, path));
    Golden golden;
    for (const Value& chat : at(all, "chats").as_list()->items)
      golden.chats.push_back(golden_chat(chat, at(all, "tokens")));
    for (const auto& [name, text] : at(all, "templates").as_dict()->entries()) {
      Golden::Case one{.name = name.bytes(), .text = text.as_text()->bytes(), .renders = {}};
      for (const Value& render : at(at(all, "renders"), name.bytes()).as_list()->items) {
        Golden::Render& out = one.renders.emplace_back();
        out.refused = render.as_dict()->find("error") != nullptr;
        if (!out.refused) out.text = at(render, "text").as_text()->bytes();
        const Value* marks = render.as_dict()->find("marks");
        for (std::size_t i = 0; marks != nullptr && i < marks->as_list()->items.size(); ++i) {
          const auto& pair = marks->as_list()->items[i].as_list()->items;
          out.marks.emplace_back(*pair[0].as_integer(), *pair[1].as_integer());
        }
      }
      golden.cases.push_back(std::move(one));
    }
    return golden;
  }();
  return read;
}

}  // namespace dstrain::chat
