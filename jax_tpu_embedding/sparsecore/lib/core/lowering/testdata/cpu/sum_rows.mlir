module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8xi32>, %arg1: tensor<8x16xf32>, %arg2: tensor<24xi32>, %arg3: tensor<24x16xf32>) -> (tensor<32xi32> {jax.result_info = "result[0]"}, tensor<32x16xf32> {jax.result_info = "result[1]"}) {
    %0:2 = stablehlo.custom_call @jte_sum_rows_cpu(%arg0, %arg1, %arg2, %arg3) {backend_config = "", mhlo.backend_config = {}, operand_layouts = [dense<0> : tensor<1xindex>, dense<[1, 0]> : tensor<2xindex>, dense<0> : tensor<1xindex>, dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<0> : tensor<1xindex>, dense<[1, 0]> : tensor<2xindex>]} : (tensor<8xi32>, tensor<8x16xf32>, tensor<24xi32>, tensor<24x16xf32>) -> (tensor<32xi32>, tensor<32x16xf32>)
    return %0#0, %0#1 : tensor<32xi32>, tensor<32x16xf32>
  }
}
