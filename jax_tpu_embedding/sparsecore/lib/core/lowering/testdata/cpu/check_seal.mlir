module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<5xf32>, %arg1: tensor<i32>, %arg2: tensor<256xf32>, %arg3: tensor<24xf32>) -> (tensor<i32> {jax.result_info = "result[0]"}, tensor<256xf32> {jax.result_info = "result[1]"}, tensor<24xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.custom_call @jte_check_seal_cpu(%arg0, %arg1) {backend_config = "", mhlo.backend_config = {message = "Not a seal."}, operand_layouts = [dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 1, operand_tuple_indices = []>], result_layouts = [dense<> : tensor<0xindex>]} : (tensor<5xf32>, tensor<i32>) -> tensor<i32>
    return %0, %arg2, %arg3 : tensor<i32>, tensor<256xf32>, tensor<24xf32>
  }
}
