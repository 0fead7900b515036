module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<i32>) -> (tensor<32xi32> {jax.result_info = "result[0]"}, tensor<1xi1> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<32xi32>) -> tensor<1xi32>
    %1 = stablehlo.reshape %0 : (tensor<1xi32>) -> tensor<i32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %2 = stablehlo.compare LT, %1, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %3 = call @_where(%2, %c_0, %arg0) : (tensor<i1>, tensor<i32>, tensor<32xi32>) -> tensor<32xi32>
    %4 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i1>) -> tensor<1xi1>
    return %3, %4 : tensor<32xi32>, tensor<1xi1>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<32xi32>) -> tensor<32xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<32xi32>
    %2 = stablehlo.select %arg0, %1, %arg2 : tensor<i1>, tensor<32xi32>
    return %2 : tensor<32xi32>
  }
}
