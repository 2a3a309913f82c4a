// The cart of the shop.

export function total(prices) {
  return prices.reduce((sum, price) => sum + price, 0);
}
