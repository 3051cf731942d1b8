import com.fasterxml.jackson.databind.ObjectMapper;
import delayq.CeleryMessage;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RFuture;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Redisson for the tests (redisson.py starts it): runs what it reads, one JSON array a line: a command, the name of a queue, arguments. It answers
 * each with one line of JSON: an object with "ok", or with "error". Values are bytes in base64, or with StringCodec text
 * whose UTF-8 is sent in base64.
 *
 * Arguments: the port of Redis, or of a node of a Redis Cluster; "bytes" or "string", the codec; "server" or "cluster".
 */
public final class RedissonShell {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final RedissonClient redisson;
    private final boolean text;
    private final boolean cluster;
    private final Map<String, RDelayedQueue<Object>> delayedQueues = new HashMap<>();

    private RedissonShell(RedissonClient redisson, boolean text, boolean cluster) {
        this.redisson = redisson;
        this.text = text;
        this.cluster = cluster;
    }

    public static void main(String[] args) throws Exception {
        boolean text = args[1].equals("string");
        boolean cluster = args[2].equals("cluster");
        String address = "redis://127.0.0.1:" + args[0];
        Config config = new Config();
        config.setCodec(text ? StringCodec.INSTANCE : ByteArrayCodec.INSTANCE);
        if (cluster) {
            config.useClusterServers().addNodeAddress(address);
        } else {
            config.useSingleServer().setAddress(address);
        }
        RedissonClient redisson = Redisson.create(config);
        try {
            new RedissonShell(redisson, text, cluster).answer(new BufferedReader(
                    new InputStreamReader(System.in, StandardCharsets.UTF_8)));
        } finally {
            redisson.shutdown();
        }
    }

    private void answer(BufferedReader lines) throws IOException {
        System.out.println("{\"ok\": \"ready\"}");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                List<?> words = JSON.readValue(line, List.class);
                answer.put("ok", run((String) words.get(0), (String) words.get(1), words.subList(2, words.size())));
            } catch (Exception error) {
                answer.put("error", error.toString());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private Object run(String command, String name, List<?> args) throws Exception {
        switch (command) {
            case "transfer": // Redisson transfers from when an RDelayedQueue is made
                delayed(name);
                return null;
            case "destroy": // it no longer does, and can be used all the same
                delayedQueues.get(name).destroy();
                return null;
            case "destroy_all":
                delayedQueues.values().forEach(RDelayedQueue::destroy);
                delayedQueues.clear();
                return null;
            case "offer": // pairs of delay (ms) and value
                offer(delayed(name), args);
                return null;
            case "task":
                return task(name, JSON.convertValue(args.get(0), Map.class));
            case "build":
                return message(JSON.convertValue(args.get(0), Map.class)).toJson(name);
            case "cluster_list_name":
                return message(JSON.convertValue(args.get(0), Map.class)).clusterListName((String) args.get(1), name);
            case "parse":
                return parse(new String(Base64.getDecoder().decode((String) args.get(0)), StandardCharsets.UTF_8));
            case "take":
                return encode(blocking(name).take());
            case "poll_ready":
                return encode(blocking(name).poll(number(args.get(0)), TimeUnit.MILLISECONDS));
            case "poll_last":
                return encode(redisson.getBlockingDeque(name).pollLast());
            case "size":
                return delayed(name).size();
            case "contains":
                return delayed(name).contains(decode(args.get(0)));
            case "contains_all":
                return delayed(name).containsAll(decode(args));
            case "remove":
                return delayed(name).remove(decode(args.get(0)));
            case "remove_all":
                return delayed(name).removeAll(decode(args));
            case "retain_all":
                return delayed(name).retainAll(decode(args));
            case "peek":
                return encode(delayed(name).peek());
            case "poll":
                return args.isEmpty() ? encode(delayed(name).poll()) : encode(delayed(name).poll((int) number(args.get(0))));
            case "read_all":
                return encode(delayed(name).readAll());
            case "iterate":
                return iterate(delayed(name).iterator());
            case "iterate_and_remove":
                return iterateAndRemove(delayed(name).iterator(), decode(args.get(0)));
            case "clear":
                delayed(name).clear();
                return null;
            case "delete":
                return delayed(name).delete();
            default:
                throw new IllegalArgumentException("unknown command " + command);
        }
    }

    @SuppressWarnings("deprecation") // RDelayedQueue is what this is about
    private RDelayedQueue<Object> delayed(String name) {
        return delayedQueues.computeIfAbsent(name, key -> redisson.getDelayedQueue(blocking(key)));
    }

    private RBlockingQueue<Object> blocking(String name) {
        return redisson.getBlockingQueue(name);
    }

    private void offer(RDelayedQueue<Object> queue, List<?> pairs) throws Exception {
        List<RFuture<Void>> offered = new ArrayList<>();
        for (int at = 0; at < pairs.size(); at += 2) {
            offered.add(queue.offerAsync(decode(pairs.get(at + 1)), number(pairs.get(at)), TimeUnit.MILLISECONDS));
        }
        for (RFuture<Void> one : offered) {
            one.toCompletableFuture().get();
        }
    }

    /** Offers a Celery task; returns when it is due, unix time in ms, 0 for now. */
    private long task(String queue, Map<String, Object> given) {
        CeleryMessage message = message(given);
        String json = message.toJson(queue);
        Object value = text ? json : json.getBytes(StandardCharsets.UTF_8);
        String list = cluster ? message.clusterListName("", queue) : message.listName(queue);
        delayed(list).offer(value, message.delayMillis(), TimeUnit.MILLISECONDS);
        return message.eta() == null ? 0 : message.eta().toEpochMilli();
    }

    @SuppressWarnings("unchecked")
    private static CeleryMessage message(Map<String, Object> given) {
        CeleryMessage message = CeleryMessage.of((String) given.get("task"), ((List<?>) given.get("args")).toArray())
                .withId((String) given.get("id"))
                .withKwargs((Map<String, ?>) given.getOrDefault("kwargs", Map.of()))
                .withPriority((Integer) given.getOrDefault("priority", 0));
        if (given.containsKey("eta_ms")) {
            message = message.withEta(Instant.ofEpochMilli(number(given.get("eta_ms"))));
        }
        if (given.containsKey("expires_ms")) {
            message = message.withExpires(Instant.ofEpochMilli(number(given.get("expires_ms"))));
        }
        return message;
    }

    private static Map<String, Object> parse(String text) {
        CeleryMessage message = CeleryMessage.parse(text);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("id", message.id());
        found.put("task", message.task());
        found.put("args", message.args());
        found.put("kwargs", message.kwargs());
        found.put("eta_ms", message.eta() == null ? null : message.eta().toEpochMilli());
        found.put("expires_ms", message.expires() == null ? null : message.expires().toEpochMilli());
        found.put("priority", message.priority());
        return found;
    }

    private List<String> iterate(Iterator<Object> iterator) {
        List<String> found = new ArrayList<>();
        iterator.forEachRemaining(value -> found.add(encode(value)));
        return found;
    }

    private List<String> iterateAndRemove(Iterator<Object> iterator, Object unwanted) {
        List<String> found = new ArrayList<>();
        while (iterator.hasNext()) {
            Object value = iterator.next();
            found.add(encode(value));
            if (text ? value.equals(unwanted) : Arrays.equals((byte[]) value, (byte[]) unwanted)) {
                iterator.remove();
            }
        }
        return found;
    }

    private Object decode(Object value) {
        byte[] bytes = Base64.getDecoder().decode((String) value);
        return text ? new String(bytes, StandardCharsets.UTF_8) : bytes;
    }

    private List<Object> decode(List<?> values) {
        List<Object> decoded = new ArrayList<>();
        values.forEach(value -> decoded.add(decode(value)));
        return decoded;
    }

    private String encode(Object value) {
        if (value == null) {
            return null;
        }
        byte[] bytes = text ? ((String) value).getBytes(StandardCharsets.UTF_8) : (byte[]) value;
        return Base64.getEncoder().encodeToString(bytes);
    }

    private List<String> encode(Collection<Object> values) {
        List<String> encoded = new ArrayList<>();
        values.forEach(value -> encoded.add(encode(value)));
        return encoded;
    }

    private static long number(Object value) {
        return ((Number) value).longValue();
    }
}
