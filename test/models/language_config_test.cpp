#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/models/bloom/config.h"
#include "engine/models/family.h"
#include "engine/models/gpt2/config.h"
#include "engine/models/llama/llama.h"
#include "engine/models/mistral/mistral.h"
#include "engine/models/model.h"
#include "engine/models/phi3/phi3.h"
#include "engine/models/qwen2/qwen2.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

std::string error_of(const ModelConfig& config, ErrorKind kind) {
  try {
    (void)make_model(config, {.sequence = 8});
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

std::int64_t num_parameters(const std::string& name) {
  ModelConfig config;
  config.name = name;
  const Model model = make_model(config, {});
  std::int64_t count = 0;
  for (const Parameter* parameter : all_parameters(model)) count += parameter->numel();
  return count;
}

TEST_CASE("the named language models have the parameter counts of the published ones", "[models]") {
  CHECK(num_parameters("bloom-560m") == 559'214'592);
  CHECK(num_parameters("bigscience/bloom-1b1") == 1'065'314'304);
  CHECK(num_parameters("bloom-1b7") == 1'722'408'960);
  CHECK(num_parameters("bloom-3b") == 3'002'557'440);
  CHECK(num_parameters("bloom-7b1") == 7'069'016'064);
  CHECK(num_parameters("qwen2.5-0.5b") == 494'032'768);
  CHECK(num_parameters("Qwen/Qwen2.5-1.5B") == 1'543'714'304);
  CHECK(num_parameters("Qwen/Qwen2.5-3B") == 3'085'938'688);
  CHECK(num_parameters("qwen2.5-7b") == 7'615'616'512);
  CHECK(num_parameters("qwen2.5-14b") == 14'770'033'664);
  CHECK(num_parameters("qwen3-0.6b") == 596'049'920);
  CHECK(num_parameters("Qwen/Qwen3-1.7B") == 1'720'574'976);
  CHECK(num_parameters("qwen3-4b") == 4'022'468'096);
  CHECK(num_parameters("qwen3-8b") == 8'190'735'360);
  CHECK(num_parameters("llama-3.2-1b") == 1'235'814'400);
  CHECK(num_parameters("meta-llama/Llama-3.2-3B") == 3'212'749'824);
  CHECK(num_parameters("llama-3.1-8b") == 8'030'261'248);
  CHECK(num_parameters("llama-3-8b") == 8'030'261'248);
  CHECK(num_parameters("EleutherAI/pythia-14m") == 14'067'712);
  CHECK(num_parameters("pythia-70m") == 70'426'624);
  CHECK(num_parameters("pythia-160m") == 162'322'944);
  CHECK(num_parameters("pythia-410m") == 405'334'016);
  CHECK(num_parameters("pythia-1b") == 1'011'781'632);
  CHECK(num_parameters("pythia-1.4b") == 1'414'647'808);
  CHECK(num_parameters("pythia-2.8b") == 2'775'208'960);
  CHECK(num_parameters("EleutherAI/pythia-6.9b-deduped") == 6'857'302'016);
  CHECK(num_parameters("pythia-12b") == 11'846'072'320);
  CHECK(num_parameters("gpt2") == 124'439'808);
  CHECK(num_parameters("openai-community/gpt2-medium") == 354'823'168);
  CHECK(num_parameters("gpt2-large") == 774'030'080);
  CHECK(num_parameters("gpt2-xl") == 1'557'611'200);
  CHECK(num_parameters("distilgpt2") == 81'912'576);
  CHECK(num_parameters("llama-2-7b") == 6'738'415'616);
  CHECK(num_parameters("tinyllama-1.1b") == 1'100'048'384);
  CHECK(num_parameters("HuggingFaceTB/SmolLM2-135M") == 134'515'008);
  CHECK(num_parameters("smollm2-360m") == 361'821'120);
  CHECK(num_parameters("smollm2-1.7b") == 1'711'376'384);
  CHECK(num_parameters("mistral-7b-v0.1") == 7'241'732'096);
  CHECK(num_parameters("mistralai/Mistral-7B-v0.3") == 7'248'023'552);
  CHECK(num_parameters("mistral-nemo-12b") == 12'247'782'400);
  CHECK(num_parameters("mistral-small-24b") == 23'572'403'200);
  CHECK(num_parameters("olmo2-1b") == 1'484'916'736);
  CHECK(num_parameters("allenai/OLMo-2-1124-7B") == 7'298'617'344);
  CHECK(num_parameters("olmo2-13b") == 13'716'198'400);
  CHECK(num_parameters("olmo2-32b") == 32'234'279'936);
  CHECK(num_parameters("google/gemma-2-2b") == 2'614'341'888);
  CHECK(num_parameters("gemma-2-9b") == 9'241'705'984);
  CHECK(num_parameters("gemma-2-27b") == 27'227'128'320);
  CHECK(num_parameters("gemma-3-270m") == 268'098'176);
  CHECK(num_parameters("google/gemma-3-1b-pt") == 999'885'952);
  CHECK(num_parameters("mixtral-8x7b") == 46'702'792'704);
  CHECK(num_parameters("mistralai/Mixtral-8x22B-v0.1") == 140'630'071'296);
  CHECK(num_parameters("phi-3-mini-4k") == 3'821'079'552);
  CHECK(num_parameters("phi-3.5-mini") == 3'821'079'552);
  CHECK(num_parameters("microsoft/phi-4") == 14'659'507'200);
  CHECK(num_parameters("phi-4-mini") == 3'836'021'760);
}

TEST_CASE("a language model says what it is", "[models]") {
  const Model bloom = make_model(test::small_bloom_config(), {.sequence = 8});
  CHECK(bloom.family->name == "bloom");
  CHECK(bloom.is_language());
  CHECK(bloom.vocab_size == 50);
  CHECK(bloom.sequence == 8);
  CHECK(bloom.classes == 0);
  REQUIRE(bloom.blocks.size() == 4);
  CHECK(bloom.blocks[2]->name() == "transformer.h.1");
  CHECK(bloom.blocks[2]->linears().size() == 4);
  const Model qwen2 = make_model(test::small_qwen2_config(), {.sequence = 8});
  CHECK(qwen2.family->name == "qwen2");
  CHECK(qwen2.blocks[1]->linears().size() == 4);
  CHECK_FALSE(test::small_model(3).is_language());
  CHECK(test::small_model(3).blocks[1]->linears().size() == 4);
}

TEST_CASE("a tied head reads the embedding's own table", "[models]") {
  const Model tied = make_model(test::small_qwen2_config(), {.sequence = 8});
  CHECK(tied.blocks.back()->parameters()[0] == tied.blocks[0]->parameters()[0]);
  ModelConfig config = test::small_qwen2_config();
  config.name = "qwen2.5-7b";
  const Model untied = make_model(config, {.sequence = 8});
  CHECK(untied.blocks.back()->parameters()[0]->parts[0].name == "lm_head.weight");
  CHECK(all_parameters(untied).size() == all_parameters(tied).size() + 1);
}

TEST_CASE("matrices of every block lie before its vectors", "[models]") {
  for (const ModelConfig& config :
       {test::small_bloom_config(), test::small_neox_config(), test::small_gpt2_config(),
        test::small_qwen2_config(), test::small_qwen3_config(), test::small_llama_config(),
        test::small_phi3_config(), test::small_config()}) {
    const Model model = make_model(config, {.classes = 3, .sequence = 8});
    for (const auto& block : model.blocks) {
      CAPTURE(block->name());
      bool vector = false;
      for (const Parameter* parameter : block->parameters()) {
        CHECK((parameter->shape.size() == 1 || !vector));
        vector = parameter->shape.size() == 1;
      }
    }
  }
}

TEST_CASE("keys of another family are refused by name", "[models]") {
  ModelConfig config = test::small_bloom_config();
  config.patch_size = 4;
  config.kv_heads = 2;
  CHECK(error_of(config, ErrorKind::usage) ==
        "model.patch_size: BLOOM has none\nmodel.kv_heads: BLOOM has none");
  config = test::small_qwen2_config();
  config.classes = 10;
  CHECK(error_of(config, ErrorKind::usage) == "model.classes: Qwen2.5 has none");
  config = test::small_config();
  config.rope_theta = 10000;
  config.vocab_size = 10;
  CHECK(error_of(config, ErrorKind::usage) ==
        "model.vocab_size: ViT has none\nmodel.rope_theta: ViT has none");
}

TEST_CASE("sizes of a language model that do not fit are named", "[models]") {
  ModelConfig config = test::small_qwen2_config();
  config.heads = 3;
  CHECK(error_of(config, ErrorKind::usage) ==
        "model.width: 16 is not a multiple of model.heads (3)\n"
        "model.heads: 3 is not a multiple of model.kv_heads (2)");
  config = test::small_qwen2_config();
  config.heads = 16;
  CHECK(error_of(config, ErrorKind::usage) ==
        "model.width: 16 / model.heads (16) is 1, but rotary positions need an even number");
  config = test::small_qwen2_config();
  config.rope_theta = 0.5;
  CHECK(error_of(config, ErrorKind::usage) ==
        "model.rope_theta: 0.5 is not between 1 and 1000000000000");
  config = test::small_bloom_config();
  config.vocab_size = -1;
  CHECK(error_of(config, ErrorKind::usage) == "model.vocab_size: -1 is not between 1 and 16777216");
}

TEST_CASE("config.json of a published BLOOM is read", "[models]") {
  const test::TempDir folder;
  write_file_atomically(folder / "config.json", R"({
    "apply_residual_connection_post_layernorm": false, "attention_dropout": 0.1,
    "attention_softmax_in_fp32": true, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
    "initializer_range": 0.01, "layer_norm_epsilon": 1e-05, "model_type": "bloom", "n_embed": 24,
    "n_inner": null, "n_layer": 3, "num_attention_heads": 6, "offset_alibi": 100,
    "pad_token_id": 3, "seq_length": 2048, "slow_but_exact": true, "vocab_size": 99})");
  ModelConfig config;
  config.weights = folder.path().string();
  const BloomConfig bloom = bloom_config(config, *family_of("bloom"));
  CHECK(bloom.width == 24);
  CHECK(bloom.layers == 3);
  CHECK(bloom.heads == 6);
  CHECK(bloom.vocab_size == 99);
  CHECK(bloom.init_std == 0.01);
  CHECK(bloom.tied);
  const Model model = make_model(config, {.sequence = 4});
  CHECK(model.notes ==
        std::vector<std::string>{(folder / "config.json").string() +
                                 ": attention_dropout is 0.1; dstrain trains BLOOM without "
                                 "dropout"});
  const nlohmann::json json = nlohmann::json::parse(model.config_json);
  CHECK(json["hidden_size"] == 24);
  CHECK(json["n_head"] == 6);
  CHECK(json["pad_token_id"] == 3);
  config.vocab_size = 100;
  CHECK(error_of(config, ErrorKind::usage) == "model.vocab_size: 100 in the recipe, but " +
                                                  (folder / "config.json").string() +
                                                  " has vocab_size 99");
}

TEST_CASE("what a language model's config.json asks for and dstrain has not is refused",
          "[models]") {
  const test::TempDir folder;
  const std::string path = (folder / "config.json").string();
  ModelConfig config;
  config.weights = folder.path().string();
  const auto error = [&](const std::string& json) {
    write_file_atomically(path, json);
    return error_of(config, ErrorKind::data);
  };
  CHECK(error(R"({"model_type":"bloom","n_head":2,"n_layer":"2","vocab_size":9,
                  "apply_residual_connection_post_layernorm":true})") ==
        path + ": no n_embed\n" + path +
            ": n_layer is \"2\"; it must be a whole number from 1 to 4096\n" + path +
            ": apply_residual_connection_post_layernorm is true; it must be false; dstrain takes "
            "the residual before the layer norm");
  const std::string sizes =
      R"("hidden_size":16,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
         "intermediate_size":24,"vocab_size":50)";
  CHECK(error(R"({"model_type":"qwen2","use_sliding_window":true,"hidden_act":"gelu",
                  "rope_scaling":{"type":"yarn"},"head_dim":8,)" +
              sizes + "}") ==
        path +
            ": rope_scaling is {\"type\":\"yarn\"}; it must be null, or of rope_type "
            "\"default\" or \"llama3\"\n" +
            path +
            ": hidden_act is \"gelu\"; it must be \"silu\", the only activation that "
            "dstrain has for Qwen2.5\n" +
            path +
            ": use_sliding_window is true; it must be false; dstrain attends to all earlier "
            "tokens\n" +
            path + ": head_dim is 8; it must be hidden_size / num_attention_heads");
  CHECK(error(R"({"model_type":"qwen2","rope_parameters":{"rope_type":"linear"},)" + sizes + "}") ==
        path +
            ": rope_parameters is {\"rope_type\":\"linear\"}; it must be null, or of "
            "rope_type \"default\" or \"llama3\"");
  config.name = "bloom-560m";
  CHECK(error(R"({"model_type":"qwen2"})") == path + ": model_type is 'qwen2', not 'bloom'");
}

TEST_CASE("windows and parts that turn are read as transformers reads them", "[models]") {
  const test::TempDir folder;
  const std::string path = (folder / "config.json").string();
  ModelConfig config;
  config.weights = folder.path().string();
  const std::string sizes =
      R"("hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
         "intermediate_size":24,"vocab_size":50)";
  const auto write = [&](const std::string& type, const std::string& more) {
    write_file_atomically(path, R"({"model_type":")" + type + "\"," + more + sizes + "}");
  };
  const auto mistral = [&](const std::string& more) {
    write("mistral", more);
    return decoder_config(config, *family_of("mistral"), kMistral);
  };
  CHECK(mistral("").window == 4096);
  CHECK(mistral(R"("sliding_window":null,)").window == 0);
  CHECK(mistral(R"("sliding_window":7,)").window == 7);
  const auto phi3 = [&](const std::string& more) {
    write("phi3", more);
    return decoder_config(config, *family_of("phi3"), kPhi3);
  };
  CHECK(phi3("").window == 0);
  CHECK(phi3(R"("partial_rotary_factor":0.75,)").rotary() == 6);
  const DecoderConfig scaled = phi3(
      R"("rope_scaling":{"type":"longrope","short_factor":[1,2,3,4],"long_factor":[5,6,7,8]},
         "max_position_embeddings":64,"original_max_position_embeddings":16,)");
  CHECK(scaled.rope_scaling.positions == 16);
  CHECK(scaled.rope_scaling.long_divisors == std::vector<double>{5, 6, 7, 8});
  CHECK(scaled.rope_scaling.amplitude == Approx(std::sqrt(1.5)));
  REQUIRE(scaled.notes.size() == 1);
  CHECK_THAT(scaled.notes[0], Catch::Contains("of up to 16 tokens turn by the short factors"));
  const auto refused = [&](const std::string& type, const std::string& more) {
    write(type, more);
    return error_of(config, ErrorKind::data);
  };
  CHECK_THAT(refused("mistral", R"("sliding_window":0,)"),
             Catch::Contains("sliding_window is 0; it must be a whole number from 1 to"));
  CHECK_THAT(refused("phi3", R"("partial_rotary_factor":0.4,)"),
             Catch::Contains("it must be so that an even number of 8 elements turns"));
  CHECK_THAT(refused("phi3", R"("rope_scaling":{"type":"longrope","short_factor":[1,2],
                                 "long_factor":[5,6,7,8]},)"),
             Catch::Contains("it must be with a short_factor of 4 numbers above 0"));
  CHECK_THAT(refused("phi3", R"("rope_scaling":{"rope_type":"llama3"},)"),
             Catch::Contains("it must be null, or of rope_type \"default\" or \"longrope\""));
  CHECK_THAT(refused("mistral", R"("rope_scaling":{"rope_type":"longrope"},)"),
             Catch::Contains("it must be null, or of rope_type \"default\" or \"llama3\""));
}

TEST_CASE("tensor ranks do not cut tensors that files join", "[models]") {
  ModelInputs inputs{.sequence = 8};
  inputs.splits.tensor = {.index = 0, .count = 2};
  CHECK_THROWS_WITH(make_model(test::small_phi3_config(), inputs),
                    Catch::Contains("parallel.tensor: 2, but files of Phi-3 have query, key and "
                                    "value in one tensor, which dstrain does not cut"));
}

TEST_CASE("samples are no longer than the positions that a model has learnt", "[models]") {
  CHECK(make_model(test::small_bloom_config(), {.sequence = 65'536}).sequence == 65'536);
  CHECK_THROWS_WITH(make_model(test::small_bloom_config(), {.sequence = 65'537}),
                    Catch::Contains("data.sequence: 65537 tokens, but the linear biases of BLOOM "
                                    "are computed for at most 65536"));
  const test::TempDir folder;
  const std::string path = (folder / "config.json").string();
  CHECK(make_model(test::small_gpt2_config(), {.sequence = 1024}).sequence == 1024);
  CHECK_THROWS_WITH(make_model(test::small_gpt2_config(), {.sequence = 1025}),
                    Catch::Contains("data.sequence: 1025 tokens, but this GPT-2 has learnt 1024 "
                                    "positions (n_positions)"));
  ModelConfig config;
  config.weights = folder.path().string();
  const std::string sizes = R"("n_embd":24,"n_layer":2,"n_head":6,"vocab_size":50)";
  const auto write = [&](const std::string& more) {
    write_file_atomically(path, R"({"model_type":"gpt2",)" + more + sizes + "}");
  };
  write(R"("n_positions":16,"n_inner":null,"attn_pdrop":0.1,)");
  const Model model = make_model(config, {.sequence = 16});
  CHECK(model.notes == std::vector<std::string>{
                           path + ": attn_pdrop is 0.1; dstrain trains GPT-2 without dropout"});
  CHECK(gpt2_config(config, *family_of("gpt2")).mlp_width == 96);
  // The name may be the folder's model_type; another one is a model.
  config.name = "gpt2";
  CHECK(make_model(config, {.sequence = 16}).sequence == 16);
  config.name = "gpt2-medium";
  CHECK_THAT(error_of(config, ErrorKind::usage),
             Catch::Contains("model.name: gpt2-medium means width 1024, but " + path));
  config.name.clear();
  CHECK_THROWS_WITH(make_model(config, {.sequence = 17}), Catch::Contains("learnt 16 positions"));
  const auto refused = [&](const std::string& more) {
    write(more);
    return error_of(config, ErrorKind::data);
  };
  CHECK(refused(R"("activation_function":"relu","add_cross_attention":true,)") ==
        path +
            ": activation_function is \"relu\"; it must be \"gelu_new\", \"gelu_fast\", "
            "\"gelu_pytorch_tanh\" or \"gelu\"\n" +
            path +
            ": add_cross_attention is true; it must be false; dstrain has no encoder to attend to");
}

TEST_CASE("the last matrices of both branches of a GPT-2 begin smaller, the deeper it is",
          "[models]") {
  const Model model = make_model(test::small_gpt2_config(), {.sequence = 8});
  for (const Parameter* parameter : all_parameters(model)) {
    if (parameter->init != Init::normal) continue;
    const bool last = parameter->parts[0].name.ends_with("c_proj.weight");
    CHECK(parameter->init_std == (last ? 0.01 : 0.02));
  }
}

TEST_CASE("both generations of config.json say the rotary base", "[models]") {
  const test::TempDir folder;
  ModelConfig config;
  config.weights = folder.path().string();
  const auto theta = [&](const std::string& field) {
    write_file_atomically(
        folder / "config.json",
        R"({"model_type":"qwen2","hidden_size":16,"num_hidden_layers":2,"num_attention_heads":4,
            "num_key_value_heads":2,"intermediate_size":24,"vocab_size":50)" +
            field + "}");
    return decoder_config(config, *family_of("qwen2"), kQwen2).rope_theta;
  };
  CHECK(theta("") == 10000);
  CHECK(theta(R"(,"rope_theta":1000000.0,"rope_scaling":null)") == 1e6);
  CHECK(theta(R"(,"rope_parameters":{"rope_theta":5000.0,"rope_type":"default"})") == 5000);
  config.rope_theta = 6000;
  CHECK(error_of(config, ErrorKind::usage) == "model.rope_theta: 6000 in the recipe, but " +
                                                  (folder / "config.json").string() +
                                                  " has rope_theta 5000");
}

TEST_CASE("config.json of a published Llama 3.2 is read and goes on as it is", "[models]") {
  const test::TempDir folder;
  const std::string scaling =
      R"({"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
          "original_max_position_embeddings":8192,"rope_type":"llama3"})";
  const auto write = [&](const std::string& rope) {
    write_file_atomically(folder / "config.json", R"({
        "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": 128001, "head_dim": 6, "hidden_act": "silu", "hidden_size": 16,
        "initializer_range": 0.02, "intermediate_size": 24, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "vocab_size": 50)" +
                                                      rope + "}");
  };
  ModelConfig config;
  config.weights = folder.path().string();
  const auto read = [&] { return decoder_config(config, *family_of("llama"), kLlama); };
  write(R"(,"rope_theta":500000.0,"rope_scaling":)" + scaling);
  const DecoderConfig llama = read();
  CHECK(llama.head_dim == 6);
  CHECK(llama.tied);
  CHECK(llama.norm_eps == 1e-5);
  CHECK(llama.rope_theta == 5e5);
  CHECK(llama.rope_scaling == ops::RopeScaling{.factor = 32});
  CHECK_FALSE(llama.qkv_bias);
  CHECK_FALSE(llama.qk_norm);
  const Model model = make_model(config, {.sequence = 8});
  CHECK(nlohmann::json::parse(model.config_json)["rope_scaling"] == nlohmann::json::parse(scaling));

  // As transformers 5 writes it.
  nlohmann::json later = nlohmann::json::parse(scaling);
  later["rope_theta"] = 1e4;
  later["factor"] = 8;
  write(R"(,"rope_parameters":)" + later.dump());
  CHECK(read().rope_theta == 1e4);
  CHECK(read().rope_scaling.factor == 8);
  later["high_freq_factor"] = 1;
  write(R"(,"rope_parameters":)" + later.dump());
  CHECK_THAT(error_of(config, ErrorKind::data),
             Catch::Contains("it must be with a high_freq_factor above low_freq_factor"));
  later.erase("factor");
  write(R"(,"rope_parameters":)" + later.dump());
  CHECK_THAT(error_of(config, ErrorKind::data), Catch::Contains("it must be with a factor from"));
  write(R"(,"mlp_bias":true)");
  CHECK_THAT(error_of(config, ErrorKind::data),
             Catch::Contains("mlp_bias is true; it must be false; dstrain has no Llama with that"));
}

TEST_CASE("a named Llama says for transformers how its positions are scaled", "[models]") {
  const auto json_of = [](const char* name) {
    ModelConfig config;
    config.name = name;
    return nlohmann::json::parse(make_model(config, {}).config_json);
  };
  const nlohmann::json tied = json_of("llama-3.2-3b"), scaled = json_of("llama-3.1-8b"),
                       plain = json_of("llama-3-8b");
  CHECK(tied["rope_scaling"]["factor"] == 32);
  CHECK(tied["tie_word_embeddings"] == true);
  CHECK(scaled["rope_scaling"]["rope_type"] == "llama3");
  CHECK(scaled["rope_scaling"]["factor"] == 8);
  CHECK(scaled["tie_word_embeddings"] == false);
  CHECK_FALSE(plain.contains("rope_scaling"));
  CHECK(json_of("qwen3-0.6b")["head_dim"] == 128);
}

TEST_CASE("the width of heads follows from width and heads, or is said", "[models]") {
  ModelConfig config = test::small_llama_config();
  config.name = "llama";
  config.head_dim = 0;
  CHECK(nlohmann::json::parse(make_model(config, {}).config_json)["head_dim"] == 4);
  config.head_dim = 10;
  CHECK(nlohmann::json::parse(make_model(config, {}).config_json)["head_dim"] == 10);
  config.head_dim = 5;
  CHECK(error_of(config, ErrorKind::usage) ==
        "model.head_dim: 5, but rotary positions need an even number");
  config = test::small_qwen2_config();
  config.head_dim = 8;
  CHECK(error_of(config, ErrorKind::usage) == "model.head_dim: Qwen2.5 has none");
}

TEST_CASE("published names without prefix are known", "[models]") {
  const auto names = [](std::string_view family, const std::string& name) {
    return std::ranges::find(families(), family, &Family::name)->file_names(name);
  };
  CHECK(names("bloom", "transformer.h.0.mlp.dense_h_to_4h.bias") ==
        std::vector<std::string>{"transformer.h.0.mlp.dense_h_to_4h.bias",
                                 "h.0.mlp.dense_h_to_4h.bias"});
  CHECK(names("qwen2", "model.norm.weight") ==
        std::vector<std::string>{"model.norm.weight", "norm.weight"});
  CHECK(names("qwen2", "lm_head.weight") == std::vector<std::string>{"lm_head.weight"});
}

}  // namespace
}  // namespace dstrain
