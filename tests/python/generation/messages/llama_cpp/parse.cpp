// Parses transcripts by the parsers of llama.cpp (common/chat.h). compare.py builds and runs it.
//
//   parse TEMPLATE.jinja TOOLS.json CASES.json THINKING
//
// Prints a JSON array with a message for each case in the format of OpenAI's API, or {"error": text}.
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "chat.h"
#include "json.h"
#include "peg-parser.h"

static std::string text_of(const char* path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

int main(int, char** argv) {
    const auto templates = common_chat_templates_init(nullptr, text_of(argv[1]));
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(
        common_json::parse(R"([{"role": "user", "content": "Hello"}])"));
    inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(text_of(argv[2])));
    inputs.parallel_tool_calls = true;
    inputs.enable_thinking = std::string(argv[4]) == "thinking";
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    common_json messages = common_json::array();
    const common_json cases = common_json::parse(text_of(argv[3]));
    for (size_t i = 0; i < cases.size(); ++i) {
        const common_json& given = cases.at(i);
        try {
            const common_chat_params params = common_chat_templates_apply(templates.get(), inputs);
            common_chat_parser_params parser(params);
            parser.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
            if (!params.parser.empty()) parser.parser.load(params.parser);
            const auto message =
                common_chat_parse(given.at("text").get<std::string>(), false, parser);
            messages.push_back(message.to_json_oaicompat());
        } catch (const std::exception& error) {
            messages.push_back(common_json::object({{"error", std::string(error.what())}}));
        }
    }
    std::cout << messages.dump() << "\n";
}
