module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32x16xf32>) -> (tensor<8x16xf32> {jax.result_info = "result[0]"}, tensor<24x5xf32> {jax.result_info = "result[1]"}) {
    %0:2 = stablehlo.custom_call @jte_unstack_activations_cpu(%arg0) {backend_config = "", mhlo.backend_config = {num_runs = 4 : i64}, operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<[1, 0]> : tensor<2xindex>]} : (tensor<32x16xf32>) -> (tensor<8x16xf32>, tensor<24x5xf32>)
    return %0#0, %0#1 : tensor<8x16xf32>, tensor<24x5xf32>
  }
}
