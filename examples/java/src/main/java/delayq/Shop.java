package delayq;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingDeque;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * The Java half of the example: offers three orders to Celery, takes one back, and hears of the other two.
 *
 * Arguments: the address of Redis; or of some nodes of a Redis Cluster, at least two.
 */
public final class Shop {
    private Shop() {
    }

    public static void main(String[] args) throws InterruptedException {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE); // the message as it is: no other codec of Redisson is JSON in UTF-8
        if (args.length > 1) {
            config.useClusterServers().addNodeAddress(args);
        } else {
            config.useSingleServer().setAddress(args.length > 0 ? args[0] : "redis://localhost:6379");
        }
        RedissonClient redisson = Redisson.create(config);
        try {
            offerOrders(redisson);
            hearOfCancelledOrders(redisson);
        } finally {
            redisson.shutdown();
        }
    }

    @SuppressWarnings("deprecation") // Redisson 4 has no other delayed queue in its open source
    private static void offerOrders(RedissonClient redisson) {
        RDelayedQueue<String> delayed = redisson.getDelayedQueue(redisson.getBlockingQueue("celery"));
        delayed.destroy(); // Celery workers transfer, in the right order; this only ends Redisson's own transfer

        List<String> offered = new ArrayList<>();
        for (int order = 1; order <= 3; order++) {
            CeleryMessage message = CeleryMessage.of("shop.cancel_unpaid", order).withCountdown(Duration.ofSeconds(3));
            String json = message.toJson("celery");
            delayed.offer(json, message.delayMillis(), TimeUnit.MILLISECONDS);
            offered.add(json);
            System.out.println("order " + order + " is cancelled in 3 s, task " + message.id());
        }
        System.out.println("order 2 is paid: " + delayed.remove(offered.get(1)));
    }

    private static void hearOfCancelledOrders(RedissonClient redisson) throws InterruptedException {
        RBlockingDeque<String> toJava = redisson.getBlockingDeque("to_java");
        for (int count = 0; count < 2; count++) {
            String json = toJava.pollLast(30, TimeUnit.SECONDS); // from the end from which Celery takes, too
            if (json == null) {
                throw new IllegalStateException("nothing came: does a worker run?");
            }
            CeleryMessage message = CeleryMessage.parse(json);
            System.out.println(message.task() + " " + message.args() + " " + message.kwargs());
        }
    }
}
